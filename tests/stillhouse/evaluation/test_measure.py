import asyncio
import dataclasses
from itertools import combinations
from typing import Any

import pytest

from stillhouse.evaluation.measure import mean_pass_at_k, mean_rewards, measure, pass_at_k
from stillhouse.tools import RewardArgs, reward
from stillhouse.tools.reward_set import RewardSet
from stillhouse.types import Message, PromptMetadata, StopReason, Trajectory, Turn
from stillhouse.verification.intervals import wilson_interval

CALL: Any = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def trajectory(
    prompt: str, answer: str = "5", stop: StopReason = StopReason.ANSWERED, tokens: int | None = 10, errors: int = 0,
    calls: int = 0, unanswered: int = 0,
) -> Trajectory:  # fmt: skip
    """Return a call a turn and then an answer, or at last calls that nobody answers."""
    usage: Any = {} if tokens is None else {"completion_tokens": tokens}
    messages: list[Any] = [{"role": "user", "content": "q"}]
    for _ in range(calls):
        messages += [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "x"}]
    last = {"role": "assistant", "content": answer}
    messages.append({**last, "content": None, "tool_calls": [CALL] * unanswered} if unanswered else last)
    turns = [Turn("stop", usage, 0.1, "m", num_tool_errors=errors if index == 0 else 0) for index in range(calls + 1)]
    return Trajectory(f"{prompt}/{answer}", prompt, 0, messages, [], turns, stop, "m")


def failed(prompt: str, stop: StopReason = StopReason.ERROR) -> Trajectory:
    messages: list[Any] = [{"role": "user", "content": "q"}]
    return Trajectory(prompt, prompt, 0, messages, [], [], stop, "m", {"kind": "transient", "message": "x"})


def prompt_metadata(**expected: str | None) -> dict[str, PromptMetadata]:
    """Return prompts with their answers; the tag is the first letter of the name."""
    return {name: PromptMetadata(name, answer, name[0], "exact", {}) for name, answer in expected.items()}


def test_accuracy_counts_verified_trajectories_and_shows_its_interval() -> None:
    prompts = prompt_metadata(a1="5", a2="5", b1="5", b2=None)
    facts = measure(
        [trajectory("a1"), trajectory("a2", "6"), trajectory("b1"), trajectory("b2"), trajectory("unknown")],
        prompts,
    )
    assert (facts["accuracy"], facts["num_verified"]) == (pytest.approx(2 / 3), 3)
    assert (facts["accuracy_low"], facts["accuracy_high"]) == pytest.approx(wilson_interval(2 / 3, 3))
    assert facts["accuracy_by_tag"] == {"a": 0.5, "b": 1.0}
    assert facts["num_verified_by_tag"] == {"a": 2, "b": 1}
    assert (facts["num_prompts"], facts["num_trajectories"], facts["pass_at_k"]) == (5, 5, {})


def test_failures_of_the_infrastructure_are_not_wrong_answers() -> None:
    stops = (StopReason.ERROR, StopReason.TIMEOUT, StopReason.CONTENT_FILTER)
    rows = [trajectory("a"), *(failed("a", stop) for stop in stops)]
    facts = measure(rows, prompt_metadata(a="5"))
    assert (facts["accuracy"], facts["num_verified"], facts["failed_share"]) == (1.0, 1, 0.75)
    assert facts["mean_turns"] == 1.0
    assert facts["completion_tokens"] == 10


def test_a_model_that_comes_to_no_answer_is_wrong() -> None:
    stops = (
        *(StopReason.LENGTH, StopReason.CONTEXT_OVERFLOW, StopReason.BUDGET),
        *(StopReason.MAX_TURNS, StopReason.INVALID),
    )
    facts = measure([trajectory("a", stop=stop) for stop in stops], prompt_metadata(a="5"))
    assert (facts["accuracy"], facts["failed_share"]) == (0.0, 0.0)
    assert facts["truncated_share"] == pytest.approx(3 / 5)


def test_valid_calls_are_a_share_of_those_answered() -> None:
    rows = [trajectory("a", calls=3, errors=1), trajectory("b", calls=1, stop=StopReason.MAX_TURNS, unanswered=2)]
    assert measure(rows, {})["valid_tool_call_share"] == pytest.approx(3 / 4)
    assert measure([trajectory("a")], {})["valid_tool_call_share"] is None


def test_calls_that_were_refused_for_want_of_turns_are_neither_valid_nor_not() -> None:
    row = trajectory("a", calls=2, errors=1)
    turns = [row.turns[0], dataclasses.replace(row.turns[1], num_refused_calls=1), row.turns[2]]
    refused = dataclasses.replace(row, turns=turns)
    assert measure([refused], {})["valid_tool_call_share"] == 0.0


def test_token_counts_are_unknown_as_soon_as_one_is() -> None:
    known = measure([trajectory("a", tokens=10), trajectory("b", tokens=5, calls=1)], {})
    assert (known["completion_tokens"], known["mean_completion_tokens"], known["mean_turns"]) == (20, 10.0, 1.5)
    unknown = measure([trajectory("a", tokens=10), trajectory("b", tokens=None)], {})
    assert (unknown["completion_tokens"], unknown["mean_completion_tokens"]) == (None, None)


def test_samples_of_one_prompt_do_not_narrow_the_interval_as_new_prompts_would() -> None:
    answers = {"p0": "5", "p1": "6", "p2": "5", "p3": "6"}
    prompts = prompt_metadata(**dict.fromkeys(answers, "5"))
    one = measure([trajectory(*row) for row in answers.items()], prompts)
    eight = measure([trajectory(*row) for row in answers.items() for _ in range(8)], prompts)
    assert (eight["accuracy_low"], eight["accuracy_high"]) == pytest.approx((one["accuracy_low"], one["accuracy_high"]))
    assert eight["pass_at_k"] == {"1": 0.5, "2": 0.5, "4": 0.5, "8": 0.5}


def test_nothing_measured_is_none_and_not_zero() -> None:
    facts = measure([], {})
    assert (facts["num_trajectories"], facts["accuracy"], facts["accuracy_low"]) == (0, None, None)
    assert facts["mean_turns"] is None
    assert facts["failed_share"] is None
    only_failed = measure([failed("a")], prompt_metadata(a="5"))
    assert (only_failed["accuracy"], only_failed["mean_completion_tokens"]) == (None, None)
    assert only_failed["failed_share"] == 1.0


def test_a_prompt_beyond_the_context_sampled_no_token_and_hides_no_count() -> None:
    overflow = failed("b", StopReason.CONTEXT_OVERFLOW)
    facts = measure([trajectory("a", tokens=10), overflow], prompt_metadata(a="5", b="5"))
    assert (facts["mean_completion_tokens"], facts["completion_tokens"]) == (5.0, 10)
    assert (facts["accuracy"], facts["truncated_share"], facts["failed_share"]) == (0.5, 0.5, 0.0)


@pytest.mark.parametrize("num_samples", [1, 2, 5, 7])
def test_estimate_is_the_share_of_all_draws_that_hold_a_right_one(num_samples: int) -> None:
    for num_right in range(num_samples + 1):
        verdicts = [index < num_right for index in range(num_samples)]
        for k in range(1, num_samples + 1):
            draws = list(combinations(verdicts, k))
            assert pass_at_k(num_samples, num_right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_means_over_prompts_leave_out_those_with_too_few_trajectories() -> None:
    groups = [[True, False, False, False], [True, True], [False]]
    means = mean_pass_at_k(groups)
    assert list(means) == ["1", "2", "4"]
    assert means["1"] == pytest.approx((0.25 + 1.0 + 0.0) / 3)
    assert means["2"] == pytest.approx((0.5 + 1.0) / 2)
    assert means["4"] == 1.0


def test_one_trajectory_a_prompt_has_no_pass_at_k() -> None:
    assert mean_pass_at_k([[True], [False]]) == {}
    assert mean_pass_at_k([]) == {}


@reward
def short(args: RewardArgs, messages: list[Message]) -> float:
    """Return whether the answer is short."""
    return float(len(str(messages[-1]["content"])) < 5)


@reward
def judged(args: RewardArgs, messages: list[Message]) -> float:
    """Return what a judge that is down at times says."""
    if args.prompt_id == "p2":
        raise ConnectionError("the judge is down")
    return 0.5


def rewarded(prompt_id: str, answer: str) -> Trajectory:
    messages: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    return Trajectory("k" + prompt_id, prompt_id, 0, messages, [], [], StopReason.ANSWERED, "m")


METADATA = {"p0": PromptMetadata("p0", "4", None, "exact", {})}
ROWS = [rewarded("p0", "4"), rewarded("p1", "a long answer"), rewarded("p2", "5")]


def test_what_could_not_be_scored_is_left_out_of_the_mean_and_counted() -> None:
    assert asyncio.run(mean_rewards(ROWS, METADATA, RewardSet([short, judged]))) == {
        "reward": (0.75 + 0.25) / 2,
        "num_rewarded": 2,
        "reward_by_name": {"short": 2 / 3, "judged": 0.5},
        "num_reward_errors": 1,
    }


def test_a_mean_of_nothing_is_unknown() -> None:
    assert asyncio.run(mean_rewards([], {}, RewardSet([short])))["reward"] is None
