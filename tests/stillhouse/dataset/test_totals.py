from collections.abc import Callable

from stillhouse.dataset.totals import totals_of
from stillhouse.types import Trajectory, Turn

Make = Callable[..., Trajectory]


def test_sums_are_unknown_as_soon_as_one_turn_does_not_report(make_trajectory: Make) -> None:
    known = totals_of(make_trajectory())
    assert (known.prompt_tokens, known.completion_tokens, known.cost_usd, known.latency_s) == (40, 12, 0.75, 0.75)
    assert known.reasoning_tokens is None
    turns = [
        Turn("tool_calls", {"completion_tokens": 7}, 1.0, "m", cost_usd=0.5, provider="x"),
        Turn("stop", {}, 1.0, "m", provider="y", completion_ids=[1, 2]),
    ]
    partly = totals_of(make_trajectory(turns=turns))
    assert (partly.completion_tokens, partly.cost_usd, partly.providers) == (9, None, ["x", "y"])
    assert partly.latency_s == 2.0
    assert totals_of(make_trajectory(turns=[*turns, Turn("stop", {}, None, "m")])).latency_s is None


def test_nothing_sampled_is_unknown_rather_than_zero(make_trajectory: Make) -> None:
    totals = totals_of(make_trajectory(turns=[]))
    assert (totals.completion_tokens, totals.cost_usd, totals.latency_s, totals.num_tool_calls) == (None, None, None, 0)


def test_calls_of_the_prompt_are_not_counted_and_one_without_a_result_is_not_answered(make_trajectory: Make) -> None:
    messages = make_trajectory().messages
    for given, counts in ((messages[:-1] + messages, (1, 1)), ([*messages[:-1], messages[1]], (2, 1))):
        totals = totals_of(make_trajectory(messages=given))
        assert (totals.num_tool_calls, totals.num_tool_results) == counts
