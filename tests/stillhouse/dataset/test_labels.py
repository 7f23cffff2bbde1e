from collections.abc import Callable
from dataclasses import replace

import pytest

from stillhouse.config import DatasetConfig
from stillhouse.dataset.labels import FILTERS, MEANINGS, DropReason, Labels, Limits, Rendering, label, verdicts
from stillhouse.types import PromptMetadata, StopReason, Trajectory

GOOD = Labels(StopReason.ANSWERED, True, True, 2, 0, Rendering(50, 10))


def reasons(labels: Labels, **config: object) -> list[str]:
    limits = Limits(DatasetConfig(**config), max_tokens=100)
    return [reason.value for reason in verdicts(labels, limits) if reason]


def test_a_good_trajectory_has_no_reason_even_under_strict_limits() -> None:
    assert reasons(GOOD, keep_unverified=False, max_tool_errors=0, max_turns=2) == []


@pytest.mark.parametrize(
    ("change", "config", "expected"),
    [
        *(({"stop_reason": stop}, {}, [stop.value]) for stop in StopReason if stop is not StopReason.ANSWERED),
        ({"has_answer": False}, {}, ["no_answer"]),
        ({"verified": False}, {}, ["wrong"]),
        ({"verified": False}, {"drop_wrong": False}, []),
        ({"verified": None}, {}, []),
        ({"verified": None}, {"keep_unverified": False}, ["unverified"]),
        ({"num_tool_errors": 2}, {"max_tool_errors": 2}, []),
        ({"num_tool_errors": 3}, {"max_tool_errors": 2}, ["tool_errors"]),
        ({"num_turns": 3}, {"max_turns": 2}, ["too_many_turns"]),
        ({"rendering": None}, {}, []),
        ({"rendering": Rendering(100, 1)}, {}, []),
        ({"rendering": Rendering(101, 1)}, {}, ["too_long"]),
        ({"rendering": Rendering(50, 0)}, {}, ["nothing_supervised"]),
        ({"rendering": Rendering(None, None, "no")}, {}, ["template_error"]),
        (
            {"stop_reason": StopReason.MAX_TURNS, "has_answer": False, "verified": False, "num_tool_errors": 1},
            {"max_tool_errors": 0},
            ["max_turns", "no_answer", "wrong", "tool_errors"],
        ),
    ],
)
def test_each_reason_is_given_and_all_are_given(
    change: dict[str, object], config: dict[str, object], expected: list[str]
) -> None:
    assert reasons(replace(GOOD, **change), **config) == expected


def test_every_end_but_the_regular_one_is_a_reason_and_every_reason_is_explained() -> None:
    assert {stop.value for stop in StopReason} - {"answered"} <= {reason.value for reason in DropReason}
    assert set(MEANINGS) == set(DropReason)
    assert len({one.step for one in FILTERS}) == len(FILTERS)


def test_labels_say_what_the_trajectory_holds(make_trajectory: Callable[..., Trajectory]) -> None:
    about = PromptMetadata("p", "6", None, "numeric", {})
    assert label(make_trajectory(), about) == Labels(StopReason.ANSWERED, True, False, 2, 0, None)
    assert label(make_trajectory(), None).verified is None
