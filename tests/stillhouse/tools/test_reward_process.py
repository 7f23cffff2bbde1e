import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import FailureBudgetExceeded
from stillhouse.tools import RewardScores, RewardSet
from stillhouse.types import PromptMetadata, StopReason, Trajectory

# As math-verify limits the time of each comparison.
ALARM = """
import signal
from stillhouse.tools import RewardArgs, reward

def compare():
    def refuse(number, frame):
        raise TimeoutError("too long")
    before = signal.signal(signal.SIGALRM, refuse)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        while True:
            pass
    except TimeoutError:
        return 1.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

@reward
async def with_async_alarm(args: RewardArgs, messages: list) -> float:
    return compare()

@reward
def with_alarm(args: RewardArgs, messages: list) -> float:
    return compare()

@reward
def wrapped(args: RewardArgs, messages: list) -> float:
    try:
        return compare()
    except ValueError as error:
        raise ValueError("threads are not supported") from error
"""
UNRULY = """
import asyncio, os, time
from stillhouse.tools import RewardArgs, reward

@reward(timeout_s=1)
async def unruly(args: RewardArgs, messages: list) -> float:
    print("x" * 70_000)
    how = args.metadata.get("how")
    if how == "spin":
        while True:
            pass
    if how == "die":
        os._exit(3)
    if how == "leave":
        raise SystemExit("bye")
    if how == "compute":
        time.sleep(0.4)
        return 1.0
    await asyncio.sleep(9 if how == "sleep" else 0)
    return 1.0

@reward
def judged(args: RewardArgs, messages: list) -> float:
    async def score() -> float:
        return 0.5
    return score()
"""
MESSAGES: list[Any] = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
TRAJECTORY = Trajectory("key", "prompt", 0, MESSAGES, [], [], StopReason.ANSWERED, "m")

ScoreAll = Callable[..., list[RewardScores]]


@pytest.fixture
def score_all(tmp_path: Path) -> ScoreAll:
    """Score a trajectory for each `how`."""
    path = tmp_path / "rewards.py"

    def run(text: str, hows: list[str | None], *, at_once: bool = True) -> list[RewardScores]:
        path.write_text(text)

        async def score() -> list[RewardScores]:
            async with RewardSet.from_config(ToolsConfig(rewards_file=str(path))) as rewards:
                rows = [PromptMetadata("prompt", None, None, "exact", {"how": how}) for how in hows]
                if not at_once:
                    return [await rewards.score(TRAJECTORY, row) for row in rows]
                return await asyncio.gather(*(rewards.score(TRAJECTORY, row) for row in rows))

        return asyncio.run(score())

    return run


def test_rewards_may_set_alarms_whether_async_or_refused_one_in_a_thread(score_all: ScoreAll) -> None:
    scored = score_all(ALARM, [None, None])
    assert scored == [RewardScores(1.0, {"with_async_alarm": 1.0, "with_alarm": 1.0, "wrapped": 1.0}, {})] * 2


def test_math_verify_compares_in_an_async_reward(score_all: ScoreAll) -> None:
    text = """
from math_verify import parse, verify
from rnow.core import RewardArgs, get_response, reward

@reward
async def accuracy(args: RewardArgs, messages: list) -> float:
    return 1.0 if verify(parse("$4$"), parse(get_response(messages))) else 0.0
"""
    assert score_all(text, [None]) == [RewardScores(1.0, {"accuracy": 1.0}, {})]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("sleep", "did not return within 1 s"),
        ("spin", "did not return within 1 s"),
        ("leave", "SystemExit: bye"),
    ],
)
def test_a_call_that_fails_costs_the_others_nothing(score_all: ScoreAll, how: str, error: str) -> None:
    failed, *others = score_all(UNRULY, [how, None, None])
    assert (failed.total, failed.errors) == (None, {"unruly": error})
    assert [scored.total for scored in others] == [0.75, 0.75]


def test_a_process_that_ends_is_started_again(score_all: ScoreAll) -> None:
    died, scored = score_all(UNRULY, ["die", None], at_once=False)
    assert died.errors["unruly"].startswith("its process ended")
    assert scored.total == 0.75


def test_time_spent_waiting_for_the_main_thread_is_no_time_of_a_call(score_all: ScoreAll) -> None:
    assert [scored.total for scored in score_all(UNRULY, ["compute"] * 5)] == [0.75] * 5


def test_failures_are_counted_by_trajectory_and_fail_above_their_share(tmp_path: Path) -> None:
    path = tmp_path / "rewards.py"
    path.write_text(UNRULY)
    rewards = RewardSet.from_config(ToolsConfig(rewards_file=str(path)))

    async def score() -> None:
        async with rewards:
            for how in ("leave", None, None, None):
                await rewards.score(TRAJECTORY, PromptMetadata("prompt", None, None, "exact", {"how": how}))

    asyncio.run(score())
    rewards.failures.check(str(path), 0.25)
    expected = rf"{path}: .* 1 of 4 .*25%.* runtime\.failure_budget = 20%.* unruly failed 1 .*SystemExit: bye"
    with pytest.raises(FailureBudgetExceeded, match=expected):
        rewards.failures.check(str(path), 0.2)
