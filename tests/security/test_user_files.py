"""Python files that nobody named."""

from pathlib import Path

import pytest

from stillhouse.errors import ConfigError
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.tools.toolbox import load_tools


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder of files with the names of modules; each that is run leaves a mark in `ran`."""
    (tmp_path / "ran").mkdir()
    for name in ("tools", "rewards", "json", "random", "stillhouse", "tasks", "sitecustomize"):
        mark = tmp_path / "ran" / name
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def test_a_process_of_ours_runs_no_file_of_the_folder_it_starts_in(hostile: Path) -> None:
    with GuardedProcess("tests.provider", ["--help"]) as process:
        output = "".join(process.lines)
    assert "--service" in output
    assert list((hostile / "ran").iterdir()) == []


def test_a_file_of_tools_is_run_from_the_path_that_is_named_and_no_other_is(hostile: Path) -> None:
    named = hostile / "named"
    named.mkdir()
    (named / "mine.py").write_text(
        "from stillhouse.tools import tool\n\n\n@tool\ndef greet(name: str) -> str:\n"
        '    """Greets.\n\n    Args:\n        name: whom.\n    """\n    return name\n',
        encoding="utf-8",
    )
    assert [tool.name for tool in load_tools(named / "mine.py")] == ["greet"]
    with pytest.raises(ConfigError, match="no such file"):
        load_tools(named / "tools.py")
    assert list((hostile / "ran").iterdir()) == []
