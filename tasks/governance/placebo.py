"""Placebos: the on-policy training once more, with scores that say nothing, for the student to be compared with."""

from collections.abc import Sequence

from stillhouse.types import Model
from tasks.prompts import PromptSets
from tasks.run.context import Run
from tasks.training import train_on_policy


def train_placebos(students: Sequence[Model], prompts: PromptSets, run: Run) -> list[Model]:
    """What the last of `students` has to beat by `promotion.placebo`: its start and the arms; nothing if disabled.

    The student that a training started from is the placebo that took no step. It is there because an arm may end worse
    than it began, so that a student that learnt nothing would be better than the arm.

    Args:
        students: what training started from, and the student of each stage of training after it.
        prompts: those of the run.
        run: this flow run.

    Raises:
        StillhouseError: as on-policy training.
    """
    placebo = run.config.promotion.placebo
    if not placebo.enabled:
        return []
    start = students[-2]
    return [start, *(train_on_policy(start, prompts, run.config, run, placebo=arm) for arm in placebo.arms)]
