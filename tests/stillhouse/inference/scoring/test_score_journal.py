import logging
import sqlite3
from array import array
from contextlib import closing
from pathlib import Path

import pytest

from stillhouse.inference.scoring.journal import ScoreJournal

KEYS = [bytes([number]) * 32 for number in range(3)]
SCORES = {key: [-1.5, -float(number), -0.25] for number, key in enumerate(KEYS)}


def _written(path: Path) -> None:
    journal = ScoreJournal(path, "far")
    journal.put(SCORES)
    journal.close()


def _flip(path: Path, logprobs: list[float]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data, stored = bytearray(path.read_bytes()), array("d", logprobs).tobytes()
    assert data.count(stored) == 1
    data[data.index(stored) + 10] ^= 4
    path.write_bytes(data)


def test_scores_that_changed_on_disk_are_reported_and_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "scores.sqlite"
    _written(path)
    _flip(path, SCORES[KEYS[1]])
    journal = ScoreJournal(path, "far")
    assert journal.find(KEYS) == {key: SCORES[key] for key in (KEYS[0], KEYS[2])}
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{path}: 1 of 3 answers are damaged" in said
    journal.put({KEYS[0]: [0.0], KEYS[1]: [-2.0]})
    assert journal.find(KEYS) == {**SCORES, KEYS[1]: [-2.0]}
    journal.close()


def test_scores_of_a_file_without_digests_are_found_and_protected_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE score (key BLOB PRIMARY KEY, logprobs BLOB NOT NULL) WITHOUT ROWID")
        rows = [(key, array("d", logprobs).tobytes()) for key, logprobs in SCORES.items()]
        connection.executemany("INSERT INTO score VALUES (?, ?)", rows)
    first, second = ScoreJournal(path, "far"), ScoreJournal(path, "far")
    assert first.find(KEYS) == second.find(KEYS) == SCORES
    first.close()
    second.close()
    _flip(path, SCORES[KEYS[2]])
    journal = ScoreJournal(path, "far")
    assert journal.find(KEYS) == {key: SCORES[key] for key in KEYS[:2]}
    journal.close()
