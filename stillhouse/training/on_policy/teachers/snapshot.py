"""A teacher that is the student as it was after the last of every so many steps (`snapshot`)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from stillhouse.errors import StoreError
from stillhouse.store.atomic import replaced_atomically
from stillhouse.training.loop.weights import WeightCopy
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.teachers.packed import ScoringSettings
from stillhouse.training.on_policy.teachers.self_teacher import SelfTeacher

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
