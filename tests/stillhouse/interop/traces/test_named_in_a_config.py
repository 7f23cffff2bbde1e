from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.config import PromptsConfig
from stillhouse.errors import InputError
from stillhouse.prompts import parse_prompts
from stillhouse.rollouts.imported import TrajectoryFile
from tests.stillhouse.interop.traces.claude_lines import session

Write = Callable[..., Path]


@pytest.mark.parametrize("name", ["project/5c2f.jsonl", "project"], ids=["file", "folder"])
def test_sessions_as_prompts_are_refused_with_the_command_that_reads_them(
    tmp_path: Path, write: Write, name: str
) -> None:
    write(tmp_path / "project" / "5c2f.jsonl", *session())
    with pytest.raises(InputError, match=r"`stillhouse convert .* -o FOLDER`"):
        parse_prompts(PromptsConfig(source=str(tmp_path / name)))


def test_sessions_as_trajectories_are_refused_with_the_command_that_reads_them(tmp_path: Path, write: Write) -> None:
    file = TrajectoryFile(write(tmp_path / "5c2f.jsonl", *session()), prompt_ids=())
    assert list(file) == []
    with pytest.raises(InputError, match=r"`stillhouse convert .*5c2f\.jsonl -o FOLDER`"):
        file.check(failure_budget=0.1)
