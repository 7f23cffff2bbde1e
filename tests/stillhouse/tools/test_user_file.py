from pathlib import Path

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools import Toolbox
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
    assert toolbox.call_sync("ask", '{"question": "who? "}').content == '{"text":"who? ask"}'


def test_two_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tools.py").write_text(GOOD.format(name=folder))
    loaded = [load_tools(tmp_path / folder / "tools.py")[0].name for folder in ("one", "two")]
    assert loaded == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef broken(:\n", "line 2: cannot be loaded: SyntaxError"),
        ("import os\n\nimport no_such_package\n", "line 3: cannot be loaded: ModuleNotFoundError"),
        ("raise SystemExit(2)\n", "line 1: cannot be loaded: SystemExit"),
        ("def f() -> str:\n    return ''\n", "has no function under @tool"),
        ("from stillhouse.tools import tool\n@tool\ndef f() -> str:\n    return ''\n", "it has no docstring"),
    ],
)
def test_a_file_that_does_not_load_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tools.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_tools(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.py: no such file"):
        load_tools(tmp_path / "nowhere.py")
