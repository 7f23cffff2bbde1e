"""Journals whose pages are damaged, and what is saved of them."""

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.inference import Journal
from stillhouse.inference.journal.journal import JOURNAL_FILE
from stillhouse.inspection import inspect_store, salvage_store
from stillhouse.store import digest

NUM_ROLLOUTS = 400
PAGE_BYTES = 4096


def _body(number: int) -> bytes:
    """Every tenth is spread over several pages."""
    return f"answer {number} ".encode() * (1500 if number % 10 == 0 else 20)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of many records, in one file."""
    path = tmp_path_factory.mktemp("whole") / JOURNAL_FILE

    async def write() -> None:
        await asyncio.gather(*(journal.put_trajectory(digest(number), _body(number)) for number in range(NUM_ROLLOUTS)))

    with Journal(path) as journal:
        asyncio.run(write())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def store(tmp_path: Path, written: Path) -> Iterator[Path]:
    (tmp_path / JOURNAL_FILE).write_bytes(written.read_bytes())
    yield tmp_path
    # Whatever happened, nothing but the journal, its locks and what was put aside is left.
    assert not list(tmp_path.glob("*salvaged*"))


def _damage(path: Path, pages: list[int], draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for page in pages:
        data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = draw.randbytes(PAGE_BYTES)
    path.write_bytes(data)


def _saved(store: Path) -> int:
    """The number of answers that are there; all of them right."""
    with Journal(store / JOURNAL_FILE) as journal:
        bodies = {number: journal.trajectory(digest(number)) for number in range(NUM_ROLLOUTS)}
    assert all(body in (None, _body(number)) for number, body in bodies.items())
    return sum(body is not None for body in bodies.values())


@pytest.mark.parametrize("seed", range(6))
def test_damaged_pages_cost_the_records_on_them_alone(store: Path, seed: int) -> None:
    path, draw = store / JOURNAL_FILE, random.Random(seed)
    num_pages = path.stat().st_size // PAGE_BYTES
    pages = draw.sample(range(1, num_pages), 12)
    _damage(path, pages, draw)
    damaged = path.read_bytes()
    (saved,) = salvage_store(store)
    # Fewer than 15 of the short records fit on a page.
    assert NUM_ROLLOUTS - 15 * len(pages) <= saved.num_records < NUM_ROLLOUTS
    assert _saved(store) == saved.num_records
    assert saved.kept.read_bytes() == damaged
    assert [finding for finding in inspect_store(store) if finding.ok is False] == []
    assert list(salvage_store(store)) == []


@pytest.mark.parametrize("first_pages", [1, 2, 3])
def test_a_file_without_its_first_pages_loses_next_to_nothing(store: Path, first_pages: int) -> None:
    path = store / JOURNAL_FILE
    path.write_bytes(bytes(first_pages * PAGE_BYTES) + path.read_bytes()[first_pages * PAGE_BYTES :])
    with pytest.raises(StoreError, match=r"stillhouse doctor --store --salvage --set runtime\.store=") as raised:
        Journal(path)
    assert str(store) in str(raised.value)
    (saved,) = salvage_store(store)
    assert saved.num_records >= NUM_ROLLOUTS - 15 * first_pages
    assert _saved(store) == saved.num_records


def test_a_version_that_the_records_belie_is_damage(store: Path) -> None:
    path = store / JOURNAL_FILE
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(StoreError, match="--salvage"):
        Journal(path)
    (saved,) = salvage_store(store)
    assert saved.num_records == _saved(store) == NUM_ROLLOUTS


def test_a_journal_without_digests_is_saved_and_has_them_afterwards(store: Path) -> None:
    path = store / JOURNAL_FILE
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("ALTER TABLE entry DROP COLUMN digest; VACUUM; PRAGMA user_version = 2;")
    data = path.read_bytes()
    # The first page of the table with records on it.
    start = next(place for place in range(PAGE_BYTES, len(data), PAGE_BYTES) if data[place] == 0x0D)
    path.write_bytes(data[:start] + bytes(PAGE_BYTES) + data[start + PAGE_BYTES :])
    (saved,) = salvage_store(store)
    assert NUM_ROLLOUTS - 15 <= saved.num_records == _saved(store) < NUM_ROLLOUTS


def test_a_file_cut_short_keeps_what_is_before_the_cut(store: Path) -> None:
    path = store / JOURNAL_FILE
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    (saved,) = salvage_store(store)
    assert saved.num_records > NUM_ROLLOUTS // 4
    assert _saved(store) == saved.num_records


def test_what_is_in_the_write_ahead_log_alone_is_saved_too(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    with Journal(path) as journal, Journal(path):
        asyncio.run(journal.put_trajectory(digest(0), _body(0)))
        asyncio.run(journal.put_trajectory(digest(1), _body(1)))
        copies = {name: (tmp_path / name).read_bytes() for name in (JOURNAL_FILE, f"{JOURNAL_FILE}-wal")}
    store = tmp_path / "killed"
    store.mkdir()
    for name, data in copies.items():
        (store / name).write_bytes(data)
    (store / JOURNAL_FILE).write_bytes(b"no database at all" * 1000)
    # SQLite reads no log whose header is damaged.
    (store / f"{JOURNAL_FILE}-wal").write_bytes(bytes(32) + copies[f"{JOURNAL_FILE}-wal"][32:])
    (saved,) = salvage_store(store)
    assert saved.num_records == 2
    assert _saved(store) == 2
    assert (store / f"{saved.kept.name}-wal").read_bytes()[32:] == copies[f"{JOURNAL_FILE}-wal"][32:]


def test_a_second_salvage_reads_what_the_first_put_aside(store: Path) -> None:
    path, draw = store / JOURNAL_FILE, random.Random(1)
    _damage(path, [1, 4], draw)
    (first,) = salvage_store(store)
    path.write_bytes(bytes(PAGE_BYTES))
    (second,) = salvage_store(store)
    assert second.num_records == first.num_records
    assert second.kept != first.kept


def test_a_journal_in_use_is_left_alone(store: Path) -> None:
    path = store / JOURNAL_FILE
    with Journal(path) as journal:
        assert asyncio.run(journal.claim(digest("a new one")))
        _damage(path, [2, 3, 4], random.Random(2))
        before = path.read_bytes()
        with pytest.raises(StoreError, match="a process is writing"):
            list(salvage_store(store))
        assert path.read_bytes() == before


def test_a_file_without_one_record_is_an_error_and_stays(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE).write_bytes(b"something else" * 1000)
    with pytest.raises(StoreError, match="no record in it can be read"):
        list(salvage_store(tmp_path))
    assert (tmp_path / JOURNAL_FILE).read_bytes() == b"something else" * 1000
