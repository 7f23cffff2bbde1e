import asyncio
from pathlib import Path

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools import RewardSet, Toolbox
from stillhouse.tools.toolbox import load_tools

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from stillhouse.tools import tool

@dataclass
class Answer:
    text: str

@tool
def {name}(question: str) -> Answer:
    '''Answers a question.'''
    return Answer(question + '{name}')

def not_a_tool() -> None: ...
"""


def test_functions_under_the_decorator_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(GOOD.format(name="ask"))
    toolbox = Toolbox.from_config(ToolsConfig(builtin=("calculator",), file=str(tmp_path / "tools.py")))
    assert toolbox.names == ["calculator", "ask"]
    assert asyncio.run(toolbox.call("ask", '{"question": "who? "}')).content == '{"text":"who? ask"}'


def test_two_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tools.py").write_text(GOOD.format(name=folder))
    loaded = [load_tools(tmp_path / folder / "tools.py")[0].name for folder in ("one", "two")]
    assert loaded == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef broken(:\n", "line 2: .*SyntaxError"),
        ("import os\n\nimport no_such_package\n", "line 3: .*ModuleNotFoundError"),
        ("raise SystemExit(2)\n", "line 1: .*SystemExit"),
        ("def f() -> str:\n    return ''\n", "@tool"),
        ("from stillhouse.tools import tool\n@tool\ndef f() -> str:\n    return ''\n", "docstring"),
    ],
)
def test_a_file_that_does_not_load_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tools.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path}.*{message}"):
        load_tools(path)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.py"):
        load_tools(Path("nowhere.py"))
    with pytest.raises(ConfigError, match=r"nowhere\.py.*tools\.rewards_file"):
        RewardSet.from_config(ToolsConfig(rewards_file="nowhere.py"))


DECORATED = """
@tool
def ask(question: str) -> str:
    '''Answers a question.'''
    return question

@reward
def right(args: {args}, messages: list) -> float:
    return 1.0
"""


def test_the_decorators_are_there_without_an_import(tmp_path: Path) -> None:
    path = tmp_path / "tools.py"
    path.write_text("from stillhouse.tools import RewardArgs\n" + DECORATED.format(args="RewardArgs"))
    assert [tool.name for tool in load_tools(path)] == ["ask"]
    assert RewardSet.from_config(ToolsConfig(rewards_file=str(path))).names == ["right"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (DECORATED.format(args="RewardArgs"), "line 8: .*'RewardArgs' .*`from stillhouse.tools import "),
        (DECORATED.format(args="'RewardArgs'"), "@reward right .*`from stillhouse.tools import RewardA"),
        ("judge = llm_judge", "line 1: .*`from rnow.core import llm_judge`"),
        ("x: Annotated[int, 'x'] = 1", "`from typing import Annotated`"),
        ("pattern = re.compile('x')", "`import re`"),
        ("values = np.zeros(3)", "`import numpy as np`"),
        ("class Point(BaseModel): ...", "`from pydantic import BaseModel`"),
        ("total = subtotal + 1", "'subtotal'"),
    ],
)
def test_a_name_that_was_not_imported_comes_with_the_line_to_add(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "tools.py"
    path.write_text(line)
    with pytest.raises(ConfigError, match=message):
        load_tools(path)
