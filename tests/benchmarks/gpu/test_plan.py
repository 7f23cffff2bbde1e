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


def test_sides_that_change_transformers_in_their_process_have_one_of_their_own() -> None:
    for job in plan(with_model=False):
        sides = [row.options.get("side") for row in job.rows]
        if job.part == "sft" and "trl" in sides:
            assert sides == ["trl"]


def test_a_pretrained_model_is_planned_where_one_is_given() -> None:
    assert [job.name for job in plan(with_model=True) if job not in plan(with_model=False)] == ["pretrained"]


@pytest.mark.parametrize("module", sorted({job.module for job in plan(with_model=True)}))
def test_every_module_of_the_plan_measures_rows(module: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.gpu.parts.{module}").measure)


def test_a_rehearsal_trains_one_size_by_every_side_and_variant() -> None:
    rows = [row.options for job in plan(with_model=False, tiny=True) if job.part == "sft" for row in job.rows]
    sides = [(options["side"], options["variant"]) for options in rows]
    assert sides == [("ours", "compiled"), ("ours", "plain"), ("trl", "liger"), ("trl", "packed"), ("trl", "compiled")]
