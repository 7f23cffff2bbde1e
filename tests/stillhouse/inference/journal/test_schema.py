"""Bytes that change on the disk: what they held is reported and asked for again, and never handed out."""

import asyncio
import logging
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.inference import Journal
from stillhouse.inference.journal.journal import JOURNAL_FILE
from stillhouse.inference.journal.parts import lend, take_back
from stillhouse.store import digest

KEY, ASKED = digest("rollout"), digest("request")


def _checkpointed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _flip(path: Path, record: bytes) -> None:
    """Change one bit in the middle of a record that the file holds once."""
    _checkpointed(path)
    data = bytearray(path.read_bytes())
    assert data.count(record) == 1
    data[data.index(record) + len(record) // 2] ^= 1
    path.write_bytes(data)


def _put(path: Path, *, trajectory: bytes | None = None) -> None:
    async def put() -> None:
        await journal.put_completion(KEY, 0, ASKED, b"the first answer")
        await journal.put_tool_result(KEY, 0, 1, ASKED, b"the tool's result")
        if trajectory is not None:
            await journal.put_trajectory(KEY, trajectory)

    with Journal(path) as journal:
        asyncio.run(put())


def test_a_changed_completion_is_reported_and_absent_until_it_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / JOURNAL_FILE
    _put(path)
    _flip(path, b"the first answer")
    with Journal(path) as journal:
        assert journal.completion(KEY, 0, ASKED) is None
        assert journal.completion(KEY, 0, ASKED) is None
        assert journal.tool_result(KEY, 0, 1, ASKED) == b"the tool's result"
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert str(path) in said
    assert f"completion 0 of rollout {KEY}" in said
    with Journal(path) as journal:
        assert asyncio.run(journal.put_completion(KEY, 0, ASKED, b"asked again")) == b"asked again"
        assert asyncio.run(journal.put_completion(KEY, 0, ASKED, b"too late")) == b"asked again"
        assert asyncio.run(journal.put_tool_result(KEY, 0, 1, ASKED, b"too late")) == b"the tool's result"
    with Journal(path) as journal:
        assert journal.completion(KEY, 0, ASKED) == b"asked again"


def test_a_rollout_whose_trajectory_is_damaged_is_claimed_by_one_process_alone(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    _put(path, trajectory=b"a whole trajectory")
    _flip(path, b"a whole trajectory")
    with Journal(path) as one, Journal(path) as other:
        assert asyncio.run(one.claim(KEY))
        assert one.trajectory(KEY) is None
        assert not asyncio.run(other.claim(KEY))
        assert asyncio.run(one.put_trajectory(KEY, b"made again")) == b"made again"
        assert asyncio.run(other.claim(KEY))
        assert other.trajectory(KEY) == b"made again"


def test_damaged_records_do_not_travel_to_parts_and_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, part = tmp_path / "store", tmp_path / "part"
    _put(store / JOURNAL_FILE)
    _flip(store / JOURNAL_FILE, b"the first answer")
    lend(store, part, [KEY])
    with Journal(part / JOURNAL_FILE) as journal:
        assert journal.completion(KEY, 0, ASKED) is None
        assert asyncio.run(journal.put_completion(KEY, 0, ASKED, b"asked elsewhere")) == b"asked elsewhere"
    _flip(part / JOURNAL_FILE, b"the tool's result")
    take_back(part, store)
    assert f"tool result 1 of completion 0 of rollout {KEY}" in caplog.text
    with Journal(store / JOURNAL_FILE) as journal:
        assert journal.completion(KEY, 0, ASKED) == b"asked elsewhere"
        assert journal.tool_result(KEY, 0, 1, ASKED) == b"the tool's result"


def test_no_changed_byte_of_the_file_gives_a_wrong_answer(tmp_path: Path) -> None:
    kept, path = tmp_path / "kept", tmp_path / JOURNAL_FILE
    keys = [digest(number) for number in range(12)]
    with Journal(kept) as journal:
        for key in keys:
            asyncio.run(journal.put_trajectory(key, key.encode() * 3))
    _checkpointed(kept)
    data = kept.read_bytes()
    draw = random.Random(5)
    # Where the rows are, all of it and more often than elsewhere: most of the file is empty.
    used = [index for index, byte in enumerate(data) if byte]
    num_lost = 0
    for index in [*draw.sample(used, 150), *draw.sample(range(len(data)), 50)]:
        damaged = bytearray(data)
        damaged[index] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            with Journal(path) as journal:
                answers = {key: journal.trajectory(key) for key in keys}
        except StoreError:
            num_lost += 1
        else:
            assert {key: answer for key, answer in answers.items() if answer not in (None, key.encode() * 3)} == {}
            num_lost += None in answers.values()
        shutil.rmtree(tmp_path / f"{JOURNAL_FILE}-claims", ignore_errors=True)
        for left in tmp_path.glob(f"{JOURNAL_FILE}-*"):
            left.unlink()
    assert num_lost > 50


def _write_version_2(path: Path, bodies: dict[str, bytes]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            """
            PRAGMA journal_mode = WAL;
            CREATE TABLE entry (place BLOB NOT NULL, body BLOB NOT NULL);
            CREATE UNIQUE INDEX entry_by_place ON entry (place);
            CREATE VIEW trajectory AS
                SELECT substr(place, 1, 32) AS rollout_key, body FROM entry WHERE substr(place, 33, 1) = x'30';
            PRAGMA user_version = 2;
            """
        )
        places = [(bytes.fromhex(key) + b"0" + b"0" * 12 + bytes(32), body) for key, body in bodies.items()]
        connection.executemany("INSERT INTO entry VALUES (?, ?)", places)
        connection.commit()


def test_answers_of_a_journal_without_digests_are_found_and_are_protected_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    bodies = {digest(number): b"answer %03d" % number for number in range(300)}
    _write_version_2(path, bodies)
    with Journal(path) as journal:
        assert {key: journal.trajectory(key) for key in bodies} == bodies
        assert asyncio.run(journal.put_trajectory(digest(7), b"other")) == b"answer 007"
    _flip(path, b"answer 123")
    with Journal(path) as journal:
        assert journal.trajectory(digest(123)) is None
        assert journal.trajectory(digest(124)) == b"answer 124"
