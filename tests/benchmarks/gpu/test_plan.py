import importlib

import pytest

from benchmarks.gpu.goals import GOALS
from benchmarks.gpu.plan import PARTS, plan


def test_a_row_has_a_name_of_its_own_within_its_part() -> None:
    names = [(job.part, row.name) for job in plan(with_model=True) for row in job.rows]
    assert len(names) == len(set(names))
    assert {part for part, _ in names} == set(PARTS)


def test_the_rows_of_every_goal_are_planned_before_any_variant() -> None:
    parts = [job.part for job in plan(with_model=False)]
    names = [row.name for job in plan(with_model=False) for row in job.rows]
    assert parts[0] == "truth"
    places = {row: names.index(row) for goal in GOALS for row in goal.rows}
    assert max(places.values()) < names.index("losses beside TRL's")


@pytest.mark.parametrize("module", sorted({job.module for job in plan(with_model=True)}))
def test_every_module_of_the_plan_measures_rows(module: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.gpu.parts.{module}").measure)
