"""Teachers that are the student with other weights: its base (`base`) or the running mean of its weights (`ema`).

They share the student's modules and so cannot score while it samples. The base is the model with its adapter disabled;
the running mean is swapped in. Both compute in the student's precision, without dropout.
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
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest, TeacherScores, finished, placed, view_of


class SelfTeacher:
    """Scores with the student's model under other weights.

    Args:
        name: of the teacher.
        kl_coef: factor of its KL.
        student: the model.
        weights: context in which the model has the teacher's weights.
        temperature: divides the logits of sampled tokens' scores.
        batch_tokens: most tokens of one forward pass.
        top_k: most probable tokens to give beside the scored ones; 0 gives none.
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
        top_k: int = 0,
    ) -> None:
        self.name = name
        self.kl_coef = kl_coef
        self._student = student
        self._weights = weights
        self._temperature = temperature
        self._batch_tokens = batch_tokens
        self._top_k = top_k
        self._packed = PackedModel(student.causal_lm, student.device, packing=student.packs_exactly(), name=name)
        self.max_context = self._packed.max_context
        self._head_copy: nn.Linear | None = None
        linears = [module for module in student.causal_lm.modules() if isinstance(module, nn.Linear)]
        self._linears = [(module, module.weight) for module in linears]

    def start(self, requests: Sequence[ScoreRequest]) -> Future[list[TeacherScores]]:
        """See `Teacher`; finished when it returns."""
        with self._reading():
            views = [request.read for request in requests]
            scores = self._packed.scores(views, self._temperature, self._batch_tokens, self._top_k)
        return finished(placed(requests, scores, None))

    def reference(self, samples: Sequence[ScoredSample]) -> Reference:
        """See `ExactTeacher`. If the output layer is trained, the next call overwrites the reference's copy of it."""
        with self._reading():
            hidden_NR, _ = self._packed.hidden_states([view_of(sample) for sample in samples])
            return Reference(hidden_NR, self._head(), self._packed.num_rows, self._packed.scaling)

    def close(self) -> None:
        """Does nothing: no request is in progress between calls."""

    def _head(self) -> nn.Linear:
        """The output layer with the teacher's weights; a copy if the student trains it."""
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
        for copied, trained in zip(self._head_copy.parameters(), head.parameters(), strict=True):
            copied.copy_(trained)
        return self._head_copy

    @contextmanager
    def _reading(self) -> Iterator[None]:
        # While the student samples, its modules may hold converted copies of the weights.
        assert all(module.weight is weight for module, weight in self._linears), f"{self.name}: the student samples"
        with torch.no_grad(), self._weights(), self._student.evaluating():
            yield
