"""TeacherRouter that are the student itself: before training (`base`), or the running mean of its weights (`ema`).

They hold no weights of their own, and so cannot score while the student samples. An adapter is left out while the base
reads; the mean changes places with the weights while it reads. Both compute as the student does, in its precision, and
without dropout.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.nn.utils import skip_init

from stillhouse.training.head.scores import Reference
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.teachers.packed import PackedModel
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest, finished, placed, view_of


class SelfTeacher:
    """Scores by the student's model with other weights.

    Args:
        name: of the teacher.
        kl_coef: factor of its KL.
        student: the model.
        weights: within the block the model has the teacher's weights.
        temperature: divides the logits of sampled tokens' scores.
        batch_tokens: most tokens of one forward pass.
    """

    def __init__(
        self,
        name: str,
        kl_coef: float,
        student: Student,
        weights: Callable[[], AbstractContextManager[object]],
        *,
        temperature: float,
        batch_tokens: int,
    ) -> None:
        self.name = name
        self.kl_coef = kl_coef
        self._student = student
        self._weights = weights
        self._temperature = temperature
        self._batch_tokens = batch_tokens
        self._packed = PackedModel(student.causal_lm, student.device, packing=student.packs_exactly(), name=name)
        self.max_context = self._packed.max_context
        self._head_copy: nn.Linear | None = None
        linears = [module for module in student.causal_lm.modules() if isinstance(module, nn.Linear)]
        self._linears = [(module, module.weight) for module in linears]

    def start(self, requests: Sequence[ScoreRequest]) -> Future[list[list[float]]]:
        """See `Teacher`; finished when it returns."""
        with self._reading():
            views = [request.read for request in requests]
            logprobs = self._packed.logprobs(views, self._temperature, self._batch_tokens)
        return finished(placed(requests, logprobs, None))

    def reference(self, samples: Sequence[ScoredSample]) -> Reference:
        """See `ExactTeacher`. The next call makes it invalid where the output layer is trained."""
        with self._reading():
            hidden_NR, _ = self._packed.hidden_states([view_of(sample) for sample in samples])
            return Reference(hidden_NR, self._head(), self._packed.num_rows, self._packed.scaling)

    def close(self) -> None:
        """Nothing is under way."""

    def _head(self) -> nn.Linear:
        """The output layer with the teacher's weights, also after the student has its own again."""
        head = self._packed.head
        if not head.weight.requires_grad:
            return head
        if self._head_copy is None:
            self._head_copy = skip_init(
                nn.Linear,
                head.in_features,
                head.out_features,
                bias=head.bias is not None,
                device=head.weight.device,
                dtype=head.weight.dtype,
            ).requires_grad_(False)
        for kept, seen in zip(self._head_copy.parameters(), head.parameters(), strict=True):
            kept.copy_(seen)
        return self._head_copy

    @contextmanager
    def _reading(self) -> Iterator[None]:
        # While the student samples, copies of its weights may stand in their places.
        assert all(module.weight is weight for module, weight in self._linears), f"{self.name}: the student samples"
        model = self._student.model
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad(), self._weights(), self._student.precision():
                yield
        finally:
            model.train(was_training)
