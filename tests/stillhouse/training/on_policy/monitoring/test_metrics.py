from dataclasses import replace
from typing import Any

import pytest

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms import algorithm_of
from stillhouse.training.on_policy.monitoring.metrics import (
    measure_credit,
    measure_rewards,
    measure_routes,
    measure_trajectories,
    most_stale,
    repetition_rate,
    staleness,
)
from stillhouse.training.on_policy.rewards import TrajectoryReward
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import StopReason, Turn
from tests.stillhouse.training.on_policy.tables import One, table_of


def sampled(
    *completions: list[int],
    prompt_id: str = "p",
    stop_reason: StopReason = StopReason.ANSWERED,
    num_tool_errors: int = 0,
    **facts: Any,
) -> SampledTrajectory:
    """A prompt of two tokens, and one token of tool output between completions."""
    token_ids, loss_mask = [0, 0], [False, False]
    for number, completion in enumerate(completions):
        read = [0] if number else []
        token_ids += read + completion
        loss_mask += [False] * len(read) + [True] * len(completion)
    turns = [Turn("stop", {}, None, "student", num_tool_errors=num_tool_errors) for _ in completions]
    return SampledTrajectory(
        "key", prompt_id, 0, [], [], turns, stop_reason, "student", token_ids=token_ids, loss_mask=loss_mask,
        sampling_logprobs=[0.0] * len(token_ids), **facts,
    )  # fmt: skip


def test_lengths_are_of_whole_trajectories_and_shares_of_all_of_them() -> None:
    batch = [sampled(list(range(number))) for number in range(1, 21)]
    batch[0] = replace(batch[0], stop_reason=StopReason.LENGTH)
    batch[1] = replace(batch[1], stop_reason=StopReason.CONTEXT_OVERFLOW)
    batch[2] = sampled([1], [2, 3], num_drifted_turns=1)
    metrics = measure_trajectories(batch)
    num_sampled = sum(range(1, 21))
    assert metrics["mean_completion_tokens"] == num_sampled / 20
    assert (metrics["p95_completion_tokens"], metrics["max_completion_tokens"]) == (19, 20)
    assert metrics["truncated_share"] == 2 / 20
    assert metrics["mean_turns"] == 21 / 20
    assert metrics["masked_share"] == pytest.approx(1 - num_sampled / (num_sampled + 2 * 20 + 1))
    assert metrics["drifted_turns"] == 1


def test_tool_calls_have_shares_of_the_answered_ones_and_none_without_a_call() -> None:
    called = sampled([1], num_tool_calls=4, num_tool_errors=2, num_invalid_tool_calls=1)
    metrics = measure_trajectories([called, sampled([1])])
    assert (metrics["valid_tool_call_share"], metrics["invalid_tool_call_share"]) == (0.5, 0.25)
    assert not {"valid_tool_call_share", "invalid_tool_call_share"} & measure_trajectories([sampled([1])]).keys()


def test_repetition_is_counted_within_each_completion() -> None:
    loop = [1, 2] * 5  # seven 4-grams, two of them distinct
    fresh = list(range(10))  # seven distinct ones
    assert repetition_rate([sampled(loop)]) == pytest.approx(5 / 7)
    assert repetition_rate([sampled(fresh, fresh)]) == 0.0
    assert repetition_rate([sampled(loop), sampled(fresh)]) == pytest.approx(5 / 14)
    assert repetition_rate([sampled([1, 1, 1])]) is None


def test_rewards_are_means_of_those_known_and_equal_groups_are_counted() -> None:
    batch = [sampled([1], prompt_id=prompt_id) for prompt_id in ("a", "a", "b", "b", "c")]
    rewards = [
        TrajectoryReward(1.0, {"correct": 1.0}),
        TrajectoryReward(0.0, {"correct": 0.0}),
        TrajectoryReward(0.5, {"short": 0.5}),
        TrajectoryReward(0.5, {"short": 0.5}),
        TrajectoryReward(None, {"correct": 1.0}, {"judged": "down"}),
    ]
    assert measure_rewards(batch, rewards) == {
        "reward": 0.5,
        "reward/correct": pytest.approx(2 / 3),
        "reward/short": 0.5,
        "reward_error_share": 0.2,
        "zero_variance_group_share": 0.5,
    }
    assert measure_rewards([sampled([1])], [TrajectoryReward(None)]) == {"reward_error_share": 0.0}


def test_figures_are_reported_by_route_where_prompts_have_one() -> None:
    batch = [
        sampled([1, 2], prompt_id="a"),
        sampled([1], prompt_id="b", stop_reason=StopReason.LENGTH),
        sampled([1], prompt_id="c"),
    ]
    rewards = [TrajectoryReward(1.0), TrajectoryReward(None), TrajectoryReward(0.0)]
    metrics = measure_routes(batch, rewards, "tag", {"a": "maths", "b": "code"})
    assert metrics == {
        "reward_by_tag/maths": 1.0,
        "mean_completion_tokens_by_tag/maths": 2.0,
        "truncated_share_by_tag/maths": 0.0,
        "mean_completion_tokens_by_tag/code": 1.0,
        "truncated_share_by_tag/code": 1.0,
    }


def test_advantages_are_measured_at_sampled_tokens_alone() -> None:
    sampling, scored, known = [0.0, -1.0, -2.0], [0.0, -3.0, -1.0], [0.0, 0.5, 0.5]
    one = One([7, 8, 9], [0, 1, 1], "p", sampling, scored, kl_coef=0.1, advantages=known)
    algorithm = algorithm_of(OnPolicyConfig())
    metrics = measure_credit(table_of([one, One([1], [0], "q", advantages=[0.0])]), algorithm)
    assert metrics == pytest.approx({"sampled_advantage": 0.45, "sampled_advantage_std": 0.15})
    assert measure_credit(table_of([]), algorithm) == {}


def test_staleness_counts_updates_since_each_token_was_sampled() -> None:
    lengths = {4: 3, 7: 1, 8: 1}
    ones = [One([1] * n, [1] * n, policy_version=v, part=v // 8) for v, n in lengths.items()]
    table = table_of([*ones, One([1], [0], part=2)], num_parts=3)
    assert staleness(table, 0, 7) == {"staleness": 9 / 4}
    assert staleness(table, 1, 9) == {"staleness": 1.0}
    assert staleness(table, 2, 7) == {}
    assert most_stale(table, 9) == {"staleness_max": 5.0}
    assert most_stale(table_of([]), 9) == {}
