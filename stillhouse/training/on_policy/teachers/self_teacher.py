"""Teachers that are the student with other weights: its base (`base`), their running mean (`ema`), a copy (`snapshot`).

They share the student's modules and so cannot score while it samples. The base is the model with its adapter disabled;
the running mean is swapped in. Both compute in the student's precision, without dropout.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import skip_init

from stillhouse.errors import StoreError
from stillhouse.store.atomic import replaced_atomically
from stillhouse.training.head.scores import Reference
from stillhouse.training.loop.weights import WeightCopy
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.teachers.packed import PackedModel, PackedTeacher, ScoringSettings
from stillhouse.training.on_policy.teachers.teacher import view_of


class SelfTeacher(PackedTeacher):
    """Scores with the student's model within `weights`, a context in which it has the teacher's weights."""

    def __init__(
        self, settings: ScoringSettings, student: Student, weights: Callable[[], AbstractContextManager[object]]
    ) -> None:
        packing = student.packs_exactly()
        super().__init__(settings, PackedModel(student.causal_lm, student.device, packing=packing, name=settings.name))
        self._student = student
        self._weights = weights
        self._head_copy: nn.Linear | None = None
        linears = [module for module in student.causal_lm.modules() if isinstance(module, nn.Linear)]
        self._linears = [(module, module.weight) for module in linears]

    def reference(self, samples: Sequence[ScoredSample]) -> Reference:
        """See `ExactTeacher`. If the output layer is trained, the next call overwrites the reference's copy of it."""
        with self._reading():
            hidden_NR, _ = self._packed.hidden_states([view_of(sample) for sample in samples])
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
        assert all(module.weight is weight for module, weight in self._linears), f"{self.name}: the student samples"
        with torch.no_grad(), self._weights(), self._student.evaluating():
            yield


COPIES_FOLDER: Final = "teacher_weights"


class SnapshotTeacher(SelfTeacher):
    """Scores with a copy of the student's trained weights, which `refresh` renews every so many optimiser steps.

    Before the first of them it is the student at first. `folder` holds the copies that a resumed training needs.
    """

    def __init__(self, settings: ScoringSettings, student: Student, folder: Path, every_steps: int) -> None:
        self._copy = WeightCopy(dict(student.trained_parameters()))
        super().__init__(settings, student, self._copy.swapped)
        self._folder = folder
        self._every_steps = every_steps
        self._step = 0

    def refresh(self, step: int, checkpoints: Iterable[int]) -> None:
        """Take the student's weights if a copy is due after `step` steps, or, in a resumed training, the last copy.

        A copy is on disk before a checkpoint can need it; copies that none of the steps in `checkpoints` needs are
        deleted. Raises StoreError if one cannot be written or read.
        """
        last = self._last_copy(step)
        if last == self._step:
            return
        path = self._path(last)
        if last == step:
            self._copy.take()
            with replaced_atomically(path) as work:
                save_file({name: weights.cpu() for name, weights in self._copy.weights.items()}, work)
        else:
            try:
                self._copy.load(load_file(path))
            except (OSError, SafetensorError) as error:
                raise StoreError(
                    f"{path}: the weights of teacher {self.name!r} after step {last} cannot be read: {error}. Delete "
                    f"{self._folder.parent} and run the same command again to train anew"
                ) from error
        self._step = last
        needed = {self._path(self._last_copy(saved)) for saved in checkpoints} | {path}
        for old in set(self._folder.glob(f"{self.name}@*.safetensors")) - needed:
            old.unlink(missing_ok=True)

    def _last_copy(self, step: int) -> int:
        return step - step % self._every_steps

    def _path(self, step: int) -> Path:
        return self._folder / f"{self.name}@{step:08d}.safetensors"
