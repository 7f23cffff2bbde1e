import asyncio

from stillhouse.evaluation.rewards import mean_rewards
from stillhouse.tools import RewardArgs, reward
from stillhouse.tools.reward_set import RewardSet
from stillhouse.types import Message, PromptMetadata, StopReason, Trajectory


@reward
def short(args: RewardArgs, messages: list[Message]) -> float:
    """Whether the answer is short."""
    return float(len(str(messages[-1]["content"])) < 5)


@reward
def judged(args: RewardArgs, messages: list[Message]) -> float:
    """What a judge that is down at times says."""
    if args.prompt_id == "p2":
        raise ConnectionError("the judge is down")
    return 0.5


def trajectory(prompt_id: str, answer: str) -> Trajectory:
    messages: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    return Trajectory("k" + prompt_id, prompt_id, 0, messages, [], [], StopReason.ANSWERED, "m")


METADATA = {"p0": PromptMetadata("p0", "4", None, "exact", {})}
ROWS = [trajectory("p0", "4"), trajectory("p1", "a long answer"), trajectory("p2", "5")]


def test_what_could_not_be_scored_is_left_out_of_the_mean_and_counted() -> None:
    assert asyncio.run(mean_rewards(ROWS, METADATA, RewardSet([short, judged]))) == {
        "reward": (0.75 + 0.25) / 2,
        "num_rewarded": 2,
        "reward_by_name": {"short": 2 / 3, "judged": 0.5},
        "num_reward_errors": 1,
    }


def test_a_mean_of_nothing_is_unknown() -> None:
    assert asyncio.run(mean_rewards([], {}, RewardSet([short])))["reward"] is None
