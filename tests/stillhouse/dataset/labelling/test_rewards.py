import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.labelling.rewards import RewardLabels
from stillhouse.errors import ConfigError
from stillhouse.types import PromptMetadata

MakeInput = Callable[..., LabelInput]
Write = Callable[[str], ToolsConfig]

REWARDS = """
import asyncio
from stillhouse.tools import RewardArgs, reward
from stillhouse.types import Message

@reward(precondition=True)
def answered(args: RewardArgs, messages: list[Message]) -> float:
    return messages[-1]["content"] is not None

@reward
async def right(args: RewardArgs, messages: list[Message]) -> float:
    await asyncio.sleep(0)
    return args.expected_answer in messages[-1]["content"]
"""
SANDBOXED = """
import os
from stillhouse.tools import RewardArgs, reward

@reward(sandbox=True)
def apart(args: RewardArgs, messages: list[dict]) -> float:
    return os.getpid() != PARENT
"""
METADATA = PromptMetadata("prompt-0", "5", "sums", "numeric", {})


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], ToolsConfig]:
    def write(text: str) -> ToolsConfig:
        path = tmp_path / "rewards.py"
        path.write_text(text)
        return ToolsConfig(rewards_file=str(path))

    return write


def test_total_and_each_reward_are_scores(
    write: Write, make_input: MakeInput, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = [make_input("It is 5.", metadata=METADATA), make_input("6", metadata=METADATA)]
    inputs += [make_input(None, metadata=METADATA), make_input("5", metadata=None)]
    with closing(RewardLabels(write(REWARDS))) as labels, caplog.at_level(logging.WARNING):
        assert labels(inputs)["scores"] == [
            {"reward": 1.0, "reward/answered": 1.0, "reward/right": 1.0},
            {"reward": 0.0, "reward/answered": 1.0, "reward/right": 0.0},
            {"reward": 0.0, "reward/answered": 0.0, "reward/right": None},
            {"reward": None, "reward/answered": 1.0, "reward/right": None},
        ]
    assert "right gave no score for 1 of" in caplog.text
    assert "TypeError" in caplog.text


def test_a_caller_may_have_an_event_loop_of_its_own(write: Write, make_input: MakeInput) -> None:
    async def score() -> object:
        with closing(RewardLabels(write(REWARDS))) as labels:
            return labels([make_input("5", metadata=METADATA)] * 100)["scores"][99]

    assert asyncio.run(score()) == {"reward": 1.0, "reward/answered": 1.0, "reward/right": 1.0}


@pytest.mark.usefixtures("jail")
def test_sandboxed_rewards_run_apart_and_start_again_after_close(write: Write, make_input: MakeInput) -> None:
    labels = RewardLabels(write(SANDBOXED.replace("PARENT", "os.getppid()")))
    for _ in range(2):
        with closing(labels):
            assert labels([make_input()])["scores"] == [{"reward": 1.0, "reward/apart": 1.0}]


def test_a_file_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"tools\.rewards_file"):
        RewardLabels(ToolsConfig())


@pytest.mark.usefixtures("jail")
def test_a_sandbox_that_does_not_load_gives_no_score_and_its_reason(
    write: Write, make_input: MakeInput, caplog: pytest.LogCaptureFixture
) -> None:
    tools = write("import os\nif os.environ['HOME'].startswith('/tmp'):\n    raise RuntimeError('apart')\n" + SANDBOXED)
    with closing(RewardLabels(tools)) as labels, caplog.at_level(logging.WARNING):
        assert labels([make_input()])["scores"] == [{"reward": None, "reward/apart": None}]
    assert "rewards.py, line 3: " in caplog.text
