import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import InputError
from tests.stillhouse.interop.result import Result
from tests.stillhouse.interop.traces.claude_lines import KEYS, call, event, result, session, text

Write = Callable[..., Path]
ANTHROPIC, GITHUB = KEYS


def other(place: str, secret: str) -> list[Any]:
    """A session with a secret at one place."""
    said = dict.fromkeys(("user", "argument", "result", "thinking", "error"), "nothing")
    said[place] = f"it is\n{secret}"
    return [
        event(1, None, "user", f"Deploy: {said['user']}"),
        event(2, 1, "assistant", [{"type": "thinking", "thinking": said["thinking"]}], message_id="m"),
        event(3, 2, "assistant", call("toolu_1", f"login\n{said['argument']}"), message_id="m"),
        event(4, 3, "user", result("toolu_1", json.dumps({"env": said["result"]}))),
        event(5, 4, "assistant", text("Done.")),
        event(6, 5, "user", "More"),
        event(7, 6, "assistant", text(said["error"])),
        event(8, 7, "user", text("[Request interrupted by user]")),
    ]


@pytest.mark.parametrize("place", ["user", "argument", "result", "thinking", "error"])
@pytest.mark.parametrize("secret", KEYS, ids=["anthropic", "github"])
def test_a_session_with_a_secret_is_left_out_and_the_secret_is_nowhere(
    tmp_path: Path, write: Write, place: str, secret: str
) -> None:
    write(tmp_path / "project" / "1.jsonl", *session())
    write(tmp_path / "project" / "2.jsonl", *other(place, secret))
    told = Result(tmp_path / "project", output=tmp_path / "out")
    if place == "error":
        # It stands in a turn that is not part of any row.
        assert len(told.trajectories) == 2
    else:
        assert [len(trajectory.turns) for trajectory in told.trajectories] == [2]
        assert (told.report.rows, told.report.rows_left_out) == (2, 1)
        (where,) = told.listed("secret")
        assert all(one.startswith("messages[") for one in where)
    assert all(secret not in file.read_text() for file in (tmp_path / "out").iterdir())


def test_a_secret_in_a_line_that_cannot_be_read_is_not_shown(tmp_path: Path, write: Write) -> None:
    torn = f'{{"type": "user", "k": "{GITHUB}'
    told = Result(write(tmp_path / "project" / "1.jsonl", *session(), torn))
    assert all(GITHUB[:20] not in file.read_text() for file in (tmp_path / "project" / "out").iterdir())
    assert told.report.rows_left_out == 1


def test_personal_data_is_labelled_and_left_out_on_request(tmp_path: Path, write: Write) -> None:
    file = write(tmp_path / "1.jsonl", *session()[:-1], event(8, 7, "assistant", text("Ask ada@lovelace.dev.")))
    assert Result(file).beside.metadata["private_data"] == ["email"]
    with pytest.raises(InputError, match="--drop-private names"):
        Result(file, drop_private=("secret", "email"))


def test_secrets_are_kept_where_the_user_says_so(tmp_path: Path, write: Write) -> None:
    file = write(tmp_path / "1.jsonl", *other("result", ANTHROPIC)[:5])
    told = Result(file, drop_private=())
    assert told.beside.metadata["private_data"] == ["secret"]
    assert ANTHROPIC in told.trajectory.messages[2]["content"]


def test_rows_of_other_formats_with_a_secret_are_left_out_too(tmp_path: Path, write: Write) -> None:
    rows = [
        {"messages": [{"role": "user", "content": said}, {"role": "assistant", "content": "Yes"}]}
        for said in (GITHUB, "a")
    ]
    told = Result(write(tmp_path / "chat.jsonl", *rows))
    assert (told.report.form, len(told.trajectories), told.listed("secret")) == ("openai", 1, [["messages[0] (user)"]])
