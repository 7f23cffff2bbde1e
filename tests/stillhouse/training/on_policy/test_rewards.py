import logging
from pathlib import Path

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import FailureBudgetExceeded
from stillhouse.training.on_policy.rewards import RewardScorer, TrajectoryReward
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Message, PromptMetadata, StopReason, Turn

METADATA = {prompt_id: PromptMetadata(prompt_id, "4", None, "exact", {"limit": 3}) for prompt_id in ("p0", "p1", "p2")}

REWARDS = """
from stillhouse.tools import RewardArgs, reward

@reward
def short(args: RewardArgs, messages: list) -> float:
    return float(len(messages[-1]["content"]) <= args.metadata["limit"])

@reward
def judged(args: RewardArgs, messages: list) -> float:
    if args.prompt_id == "p2":
        raise ConnectionError("the judge is down")
    return 0.5
"""


def sampled(prompt_id: str, answer: str, stop_reason: StopReason = StopReason.ANSWERED) -> SampledTrajectory:
    messages: list[Message] = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}]
    return SampledTrajectory(
        "key", prompt_id, 0, messages, [], [Turn("stop", {}, None, "student")], stop_reason, "student",
        token_ids=[5, 6], loss_mask=[False, True], sampling_logprobs=[0.0, -1.0],
    )  # fmt: skip


@pytest.fixture
def tools(tmp_path: Path) -> ToolsConfig:
    file = tmp_path / "rewards.py"
    file.write_text(REWARDS, encoding="utf-8")
    return ToolsConfig(rewards_file=str(file))


def test_without_rewards_of_the_user_a_right_answer_is_worth_one() -> None:
    rewards = RewardScorer(ToolsConfig())
    cut = sampled("p2", "4", StopReason.LENGTH)
    assert rewards.score([sampled("p0", "4"), sampled("p1", "5"), cut, sampled("unknown", "4")], METADATA) == [
        TrajectoryReward(1.0, {"correct": 1.0}),
        TrajectoryReward(0.0, {"correct": 0.0}),
        TrajectoryReward(0.0, {"correct": 0.0}),
        TrajectoryReward(None, {}),
    ]


def test_the_users_rewards_make_the_total_and_verification_stays_a_part(tools: ToolsConfig) -> None:
    with RewardScorer(tools) as rewards:
        scored = rewards.score([sampled("p0", "4"), sampled("p1", "a long answer")], METADATA)
    assert scored == [
        TrajectoryReward(0.75, {"correct": 1.0, "short": 1.0, "judged": 0.5}),
        TrajectoryReward(0.25, {"correct": 0.0, "short": 0.0, "judged": 0.5}),
    ]


def test_a_reward_that_fails_leaves_no_total_and_is_named_once(
    tools: ToolsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), RewardScorer(tools) as rewards:
        scored = rewards.score([sampled("p2", "4"), sampled("p2", "5")], METADATA)
    assert [reward.total for reward in scored] == [None, None]
    assert scored[0].parts == {"correct": 1.0, "short": 1.0}
    assert scored[0].errors == {"judged": "ConnectionError: the judge is down"}
    assert caplog.text.count("reward judged could not be computed") == 1


def test_more_failing_rewards_than_the_budget_allows_are_an_error(tools: ToolsConfig) -> None:
    with RewardScorer(tools, 0.5) as rewards:
        rewards.score([sampled("p0", "4"), sampled("p2", "4")], METADATA)
        rewards.check_failures()
        rewards.score([sampled("p2", "5")], METADATA)
        assert rewards.num_errors == 2
        with pytest.raises(FailureBudgetExceeded, match=r"2 of 3.*judged failed 2 times.*judge is down"):
            rewards.check_failures()


def test_groups_are_scored_in_the_background_and_keep_their_order(tools: ToolsConfig) -> None:
    with RewardScorer(tools) as rewards:
        started = [rewards.start([sampled("p0", answer)], METADATA) for answer in ("4", "too long", "5")]
        assert [future.result()[0].total for future in started] == [0.75, 0.25, 0.75]
