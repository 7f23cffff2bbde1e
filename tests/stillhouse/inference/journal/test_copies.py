"""Journals of two machines that tell each other by S3, for which moto's server answers."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.inference.copier import Copier
from stillhouse.inference.journal import open_journal
from stillhouse.inference.journal.copies import JournalCopies
from stillhouse.store import digest
from stillhouse.store.remote import RemoteFolder

Machine = Callable[[str], tuple[Path, JournalCopies]]

pytestmark = pytest.mark.usefixtures("s3")


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], tuple[Path, JournalCopies]]:
    """Folder of the journal and copies as a machine of that name has them."""
    return lambda name: (tmp_path / name, JournalCopies(RemoteFolder("s3://bucket/runs"), tmp_path / name))


def answer(folder: Path, *questions: str, body: str = "answer to ") -> None:
    async def put() -> None:
        with open_journal(folder) as journal:
            for question in questions:
                await journal.put_completion(digest(question), 0, digest("request"), (body + question).encode())

    asyncio.run(put())


def answers(folder: Path, *questions: str) -> list[str | None]:
    with open_journal(folder) as journal:
        found = [journal.completion(digest(question), 0, digest("request")) for question in questions]
    return [None if body is None else body.decode() for body in found]


def test_answers_of_one_machine_are_had_by_another_and_go_nowhere_twice(machine: Machine) -> None:
    (there, from_there), (here, from_here) = machine("there"), machine("here")
    assert from_here.take_over() == 0
    assert from_here.hand_on() == 0
    answer(there, "a", "b")
    assert from_there.hand_on() == 2
    assert from_there.hand_on() == 0
    assert from_here.take_over() == 2
    assert answers(here, "a", "b", "c") == ["answer to a", "answer to b", None]
    answer(here, "c")
    assert from_here.hand_on() == 1, "what came from others is not handed on"
    answer(there, "d")
    assert from_there.hand_on() == 1
    assert from_there.take_over() == 1
    assert from_here.take_over() == 1
    for folder in (there, here):
        assert answers(folder, *"abcd") == [f"answer to {letter}" for letter in "abcd"]
    assert from_there.hand_on() == from_here.hand_on() == 0


def test_where_both_were_answered_each_keeps_its_own(machine: Machine) -> None:
    (there, from_there), (here, from_here) = machine("there"), machine("here")
    answer(there, "a", body="one answer to ")
    answer(here, "a", body="another answer to ")
    from_there.hand_on()
    assert from_here.take_over() == 0
    assert answers(here, "a") == ["another answer to a"]


def test_a_machine_that_is_lost_has_handed_on_what_is_older_than_an_interval(machine: Machine, s3: Any) -> None:
    (there, from_there), (here, from_here) = machine("there"), machine("here")
    copier = Copier(from_there.hand_on, interval_s=0.02)
    answer(there, "a")
    deadline = time.monotonic() + 120
    # While the machine lives: nothing is said to it that it should stop.
    while s3.client().list_objects_v2(Bucket="bucket")["KeyCount"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    from_here.take_over()
    assert answers(here, "a") == ["answer to a"]
    copier.stop()


def test_a_damaged_copy_is_left_out_with_a_warning(machine: Machine, s3: Any, caplog: pytest.LogCaptureFixture) -> None:
    (there, from_there), (here, from_here) = machine("there"), machine("here")
    answer(there, "a")
    from_there.hand_on()
    s3.client().put_object(Bucket="bucket", Key="runs/journal/damaged.sqlite3", Body=b"no journal" * 1000)
    assert from_here.take_over() == 1
    assert "damaged.sqlite3 is left out" in caplog.text
    assert answers(here, "a") == ["answer to a"]
