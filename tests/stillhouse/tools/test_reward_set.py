import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools import RewardArgs, RewardScores, RewardSet, reward
from stillhouse.types import Message, PromptMetadata, StopReason, Trajectory

TRAJECTORY = Trajectory(
    rollout_key="key",
    prompt_id="prompt",
    sample_index=2,
    messages=[{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
    tools=[],
    turns=[],
    stop_reason=StopReason.ANSWERED,
    model="m",
)
METADATA = PromptMetadata("prompt", expected_answer="4", tag="sums", verifier="exact", metadata={"weight": 0.5})

Score = Callable[[RewardSet], RewardScores]


@pytest.fixture
def score() -> Score:
    return lambda book: asyncio.run(book.score(TRAJECTORY, METADATA))


@reward
def right(args: RewardArgs, messages: list[Message]) -> float:
    return messages[-1]["content"] == args.expected_answer


@reward
async def weighted(args: RewardArgs, messages: list[Message]) -> float:
    await asyncio.sleep(0)
    return args.metadata["weight"]


@reward(precondition=True)
def answered(args: RewardArgs, messages: list[Message]) -> float:
    return args.stop_reason is StopReason.ANSWERED


@reward(precondition=True)
def polite(args: RewardArgs, messages: list[Message]) -> float:
    return "please" in messages[-1]["content"]


@reward
def broken(args: RewardArgs, messages: list[Message]) -> float:
    raise ConnectionError("the judge is down")


@reward(timeout_s=0.05)
async def slow(args: RewardArgs, messages: list[Message]) -> float:
    await asyncio.sleep(30)
    return 1.0


@reward
def generous(args: RewardArgs, messages: list[Message]) -> float:
    return 7


@reward
def not_a_number(args: RewardArgs, messages: list[Message]) -> float:
    return float("nan")


@reward(precondition=True)
def broken_precondition(args: RewardArgs, messages: list[Message]) -> float:
    return 1 / 0


@pytest.mark.parametrize(
    ("rewards", "total", "values"),
    [
        ([right, weighted, answered], 0.75, {"answered": 1.0, "right": 1.0, "weighted": 0.5}),
        ([right, polite, answered], 0.0, {"polite": 0.0, "answered": 1.0}),
        ([answered], 1.0, {"answered": 1.0}),
        ([broken_precondition, polite], 0.0, {"broken_precondition": None, "polite": 0.0}),
        ([], None, {}),
    ],
    ids=["a mean", "a precondition of zero spares the rest", "no other", "a broken one beside it", "no rewards"],
)
def test_the_total_is_the_mean_of_the_rewards_unless_a_precondition_is_zero(score, rewards, total, values) -> None:
    scored = score(RewardSet(rewards))
    assert (scored.total, scored.values) == (total, values)


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        (broken, "ConnectionError"),
        (slow, "0.05 s"),
        (generous, "7"),
        (not_a_number, "nan"),
        (broken_precondition, "ZeroDivisionError"),
    ],
)
def test_a_reward_that_fails_leaves_the_trajectory_unverified(score, failing: object, message: str) -> None:
    scored = score(RewardSet([right, failing]))  # type: ignore[list-item]
    assert scored.total is None
    assert scored.values["right"] == 1.0
    assert scored.values[failing.name] is None  # type: ignore[attr-defined]
    assert message in scored.errors[failing.name]  # type: ignore[attr-defined]


def test_a_reward_is_still_a_function_and_a_trajectory_without_metadata_can_be_scored() -> None:
    @reward
    def knows_nothing(args: RewardArgs, messages: list[Message]) -> float:
        return args.metadata == {} and args.expected_answer is None and args.tag is None

    assert asyncio.run(RewardSet([knows_nothing]).score(TRAJECTORY, None)).total == 1.0
    assert right(RewardArgs({}, "4", None, StopReason.ANSWERED, {}, "", "", 0), TRAJECTORY.messages) is True


REWARDS = """
import os
from stillhouse.tools import RewardArgs, reward
from stillhouse.types import StopReason

@reward(sandbox=True)
async def sandboxed(args: RewardArgs, messages: list[dict]) -> float:
    assert args.stop_reason is StopReason.ANSWERED and args.expected_answer == messages[-1]["content"]
    assert args.environment == {"NAMED": "n"} and "SECRET" not in os.environ
    return args.metadata["weight"]

@reward(sandbox=True, precondition=True, timeout_s=0.3)
def endless(args: RewardArgs, messages: list[dict]) -> float:
    while True:
        pass
"""


@pytest.mark.usefixtures("jail")
def test_rewards_of_a_file_run_in_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("NAMED", "n")
    path = tmp_path / "rewards.py"
    path.write_text(REWARDS)

    async def score() -> tuple[list[str], RewardScores]:
        async with RewardSet.from_config(ToolsConfig(rewards_file=str(path), environment=("NAMED",))) as book:
            return book.names, await book.score(TRAJECTORY, METADATA)

    names, scored = asyncio.run(score())
    assert names == ["endless", "sandboxed"]
    assert scored == RewardScores(
        None, {"endless": None, "sandboxed": 0.5}, {"endless": "did not return within 0.3 s"}
    ), json.dumps(scored.errors)


RAISING = """
import asyncio
from stillhouse.tools import RewardArgs, reward

KINDS = {kind.__name__: kind for kind in (SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit)}
KINDS["CancelledError"] = asyncio.CancelledError

def fail(args):
    raise KINDS[args.metadata["kind"]]()

@reward
def plain(args: RewardArgs, messages: list) -> float:
    fail(args)

@reward
async def shared(args: RewardArgs, messages: list) -> float:
    fail(args)

@reward
async def task(args: RewardArgs, messages: list) -> float:
    await asyncio.create_task(shared(args, messages))

@reward(sandbox=True)
def jailed(args: RewardArgs, messages: list) -> float:
    fail(args)

@reward
def well(args: RewardArgs, messages: list) -> float:
    import numpy
    return numpy.float32(0.5)

@reward(sandbox=True)
def well_jailed(args: RewardArgs, messages: list) -> float:
    from decimal import Decimal
    return Decimal("0.5")
"""


@pytest.mark.usefixtures("jail")
def test_whatever_a_reward_raises_is_its_error_and_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "rewards.py"
    path.write_text(RAISING)
    kinds = ("SystemExit", "KeyboardInterrupt", "StopIteration", "GeneratorExit", "CancelledError")

    async def score() -> list[RewardScores]:
        async with RewardSet.from_config(ToolsConfig(rewards_file=str(path))) as book:
            rows = [PromptMetadata("prompt", None, None, "exact", {"kind": kind}) for kind in kinds]
            return [await book.score(TRAJECTORY, row) for row in rows]

    for kind, scored in zip(kinds, asyncio.run(score()), strict=True):
        assert (scored.values["well"], scored.values["well_jailed"]) == (0.5, 0.5), scored.errors
        assert scored.errors.keys() == {"plain", "shared", "task", "jailed"}
        for name, error in scored.errors.items():
            assert kind in error, (name, error)


IMPORTS = "from stillhouse.tools import RewardArgs, reward\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_to_be_found\n", "line 2: .*ModuleNotFoundError"),
        ("x = 1\n", "@reward"),
        ("@reward\ndef f(messages) -> float: ...\n", r"line 2\): .*args: RewardArgs"),
        ("@reward\ndef f(args: RewardArgs, messages): ...\n", r"line 2\): .*type hint"),
        ("@reward(timeout_s=0)\ndef f(): ...\n", "timeout_s=0"),
    ],
)
def test_a_file_of_rewards_that_does_not_load_is_named_with_its_reason(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rewards.py"
    path.write_text(IMPORTS + text)
    with pytest.raises(ConfigError, match=message):
        RewardSet.from_config(ToolsConfig(rewards_file=str(path)))
