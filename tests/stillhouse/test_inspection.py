"""What `stillhouse doctor --store` finds in a store that was damaged in one place."""

import asyncio
import sqlite3
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stillhouse.inference import Journal
from stillhouse.inference.journal.journal import JOURNAL_FILE
from stillhouse.inference.scoring.ledger import LEDGER, ScoreLedger
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.inspection import Finding, inspect_store
from stillhouse.store import ArtifactStore, digest
from stillhouse.types import JsonObject

Harm = Callable[[Path], object]
ARTIFACT = "artifacts/dataset/0123456789abcdef"
RECORD = b"a trajectory of some length"
DAMAGED_ARTIFACT = {"artifact", "artifacts"}
MADE_AGAIN = "run the command that made it again"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    def fill(folder: Path) -> tuple[int, JsonObject]:
        (folder / "rows.jsonl").write_text('{"row": 1}\n')
        return 1, {}

    root = tmp_path / "store"
    ArtifactStore(root).write("dataset", "0123456789abcdef", fill)
    with Journal(root / JOURNAL_FILE) as journal:
        asyncio.run(journal.put_trajectory(digest("rollout"), RECORD))
    with closing(sqlite3.connect(root / JOURNAL_FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger = ScoreLedger(root / LEDGER / "teacher-1")
    ledger.put({bytes(32): SequenceScores([-0.25, -1.5, -2.0])})
    ledger.close()
    return root


def _failed(root: Path) -> list[Finding]:
    return [finding for finding in inspect_store(root) if finding.ok is False]


def test_a_whole_store_has_nothing_to_complain_of_and_is_not_changed(store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    findings = {finding.name: finding.detail for finding in inspect_store(store)}
    assert _failed(store) == []
    assert {"store", "artifacts", "journal", "score files"} == findings.keys()
    assert "1 records, all as they were written" in findings["journal"]
    after = {path: path.read_bytes() for path in before}
    assert after == before


def test_a_store_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    (finding,) = inspect_store(tmp_path / "none")
    assert finding.ok is None


def _overwrite(name: str, data: bytes) -> Harm:
    return lambda root: (root / name).write_bytes(data)


def _replace(name: str, old: bytes, new: bytes) -> Harm:
    return lambda root: (root / name).write_bytes((root / name).read_bytes().replace(old, new))


def _break_journal(root: Path) -> None:
    path = root / JOURNAL_FILE
    path.write_bytes(path.read_bytes()[:4096] + b"x" * 4096 + path.read_bytes()[8192:])


def _alter_scores(root: Path) -> None:
    [path] = root.glob(f"{LEDGER}/*/*.arrows")
    stored = array("f", [-0.25, -1.5, -2.0]).tobytes()
    assert path.read_bytes().count(stored) == 1
    path.write_bytes(path.read_bytes().replace(stored, stored[::-1]))


@pytest.mark.parametrize(
    ("harm", "names", "problem", "remedy"),
    [
        (
            _overwrite(f"{ARTIFACT}/rows.jsonl", b'{"row": 2}\n'),
            DAMAGED_ARTIFACT,
            "rows.jsonl was altered",
            MADE_AGAIN,
        ),
        (_overwrite(f"{ARTIFACT}/manifest.json", b"{}"), DAMAGED_ARTIFACT, "cannot be read", MADE_AGAIN),
        (_replace(JOURNAL_FILE, b"some", b"sone"), {"journal"}, "1 of 1 records were altered", "asks again"),
        (_alter_scores, {"score file", "score files"}, "1 of 1 answers were altered", "asks again"),
        (_break_journal, {"journal"}, "is malformed", ".recover"),
    ],
)
def test_damage_is_found_and_its_remedy_named(
    store: Path, harm: Harm, names: set[str], problem: str, remedy: str
) -> None:
    harm(store)
    failed = _failed(store)
    assert {finding.name for finding in failed} == names
    assert problem in failed[0].detail
    assert remedy in failed[0].detail
    assert str(store) in failed[0].detail
