"""A converted project runs from any working directory, wherever the project and the conversion were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stillhouse.config import load_config
from stillhouse.interop import convert
from stillhouse.prompts import parse_prompts
from stillhouse.tools import RewardSet, Toolbox
from stillhouse.types import JsonObject

TOOLS = """
from stillhouse.tools import tool


@tool
def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    return a + b
"""
REWARDS = """
from stillhouse.tools import RewardArgs, reward
from stillhouse.types import Message


@reward
def brief(args: RewardArgs, messages: list[Message]) -> float:
    return 1.0
"""
ROW = {"messages": [{"role": "user", "content": "What is 2 + 2?"}]}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Changes the working directory to a new folder of that name."""

    def go(name: str) -> None:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)

    return go


def test_a_project_of_rnow_is_read_from_its_folder_and_runs_from_any(
    tmp_path: Path, write: Callable[..., Path], rnow_body: JsonObject, elsewhere: Callable[[str], None]
) -> None:
    project = tmp_path / "project"
    write(project / "data/rows.jsonl", ROW)
    write(project / "tools.py", TOOLS)
    write(project / "rewards.py", REWARDS)
    (project / "models/base").mkdir(parents=True)
    rnow_body["data"]["train_file"] = "data/rows.jsonl"
    rnow_body["model"]["path"] = "models/base"
    del rnow_body["rollout"]["mcp_url"]
    write(project / "config.yml", yaml.safe_dump(rnow_body))
    elsewhere("first")
    convert(Path("../project/config.yml"), Path("converted"))
    elsewhere("second")
    config = load_config(tmp_path / "first/converted/config.yaml")
    assert len(parse_prompts(config.prompts).prompts) == 1
    assert Toolbox.from_config(config.tools).names == ["add"]
    assert RewardSet.from_config(config.tools).names == ["brief"]
    assert (config.student.model, config.teacher.model) == (str(project / "models/base"), "Qwen/Qwen3-32B")


@pytest.mark.parametrize("place", ["examples/opd", "."])
def test_data_of_roll_lies_beside_the_config_or_where_roll_is_started(
    tmp_path: Path, write: Callable[..., Path], roll_body: Any, elsewhere: Callable[[str], None], place: str
) -> None:
    project = tmp_path / "roll"
    write(project / "data/math.jsonl", {**ROW, "tag": "deepmath", "ground_truth": "4"})
    (project / "models/base").mkdir(parents=True)
    roll_body["pretrain"] = "models/base"
    source = write(project / place / "config.yaml", yaml.safe_dump(roll_body))
    elsewhere("first")
    convert(source, Path("converted"))
    elsewhere("second")
    config = load_config(tmp_path / "first/converted/config.yaml")
    assert len(parse_prompts(config.prompts).prompts) == 1
    assert (config.student.model, config.teacher.model) == (str(project / "models/base"), "Qwen/Qwen3-32B")


def test_a_file_that_is_not_there_is_expected_beside_the_config(
    tmp_path: Path, write: Callable[..., Path], rnow_body: JsonObject, elsewhere: Callable[[str], None]
) -> None:
    write(tmp_path / "project/config.yml", yaml.safe_dump(rnow_body))
    elsewhere("first")
    convert(tmp_path / "project/config.yml", Path("converted"))
    assert load_config(Path("converted/config.yaml")).prompts.source == str(tmp_path / "project/train.jsonl")
