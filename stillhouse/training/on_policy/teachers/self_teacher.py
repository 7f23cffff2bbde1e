"""Teachers that are the student with other weights: its base (`base`) or their running mean (`ema`).

They share the student's modules and so cannot score while it samples. The base is the model with its adapter disabled;
the running mean is swapped in. Both compute in the student's precision, without dropout.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.nn.utils import skip_init

from stillhouse.training.head.scores import Reference
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.teachers.packed import PackedModel, PackedTeacher, ScoringSettings
from stillhouse.training.ranks import Ranks
from stillhouse.training.sharding import gathered, is_sharded
from stillhouse.types import Sample


class SelfTeacher(PackedTeacher):
    """Scores with the student's model within `weights`, a context in which it has the teacher's weights.

    Where `ranks` share the student, all of them call it at the same time, and then each computes alone.
    """

    def __init__(
        self,
        settings: ScoringSettings,
        student: Student,
        weights: Callable[[], AbstractContextManager[object]],
        ranks: Ranks | None = None,
    ) -> None:
        device = student.device if ranks is None else ranks.device
        packed = PackedModel(student.causal_lm, device, packing=student.packs_exactly(), name=settings.name)
        super().__init__(settings, packed)
        self._student = student
        self._weights = weights
        self._head_copy: nn.Linear | None = None
        linears = [module for module in student.causal_lm.modules() if isinstance(module, nn.Linear)]
        self._linears = [(module, module.weight) for module in linears]

    def reference(self, samples: Sequence[Sample]) -> Reference:
        """See `ExactTeacher`. If the output layer is trained, the next call overwrites the reference's copy of it."""
        with self._reading():
            hidden_NR, _ = self._packed.hidden_states([sample.read for sample in samples])
            return Reference(hidden_NR, self._head(), self._packed.num_rows, self._packed.scaling)

    def _head(self) -> nn.Linear:
        """Return the output layer with the teacher's weights; a copy if the student trains it."""
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
        step, linears = self._student.step, self._linears
        is_free = is_sharded(step) or all(module.weight is weight for module, weight in linears)
        assert is_free, f"{self.name}: the student samples"
        with torch.no_grad(), self._weights(), gathered(step), self._student.evaluating():
            yield
