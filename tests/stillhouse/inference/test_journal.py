import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhouse.errors import StoreError
from stillhouse.inference import Journal, open_journal
from stillhouse.store import digest

KEY = digest("rollout")
ASKED = digest("request")


def test_answers_that_come_together_share_a_commit(tmp_path: Path) -> None:
    async def put_many(journal: Journal) -> None:
        await asyncio.gather(*(journal.put_completion(KEY, turn, ASKED, b"x" * 200) for turn in range(2000)))

    with Journal(tmp_path / "j") as journal:
        asyncio.run(put_many(journal))
        assert journal.completion(KEY, 1999, ASKED) is not None
        assert 1 <= num_commits(tmp_path / "j-wal") < 100


def num_commits(wal: Path) -> int:
    """Count the commits in a write-ahead log of SQLite: frames that give the size of the database after them.

    See https://www.sqlite.org/fileformat2.html#walformat.
    """
    log = wal.read_bytes()
    page_size = int.from_bytes(log[8:12])
    return sum(any(log[first + 4 : first + 8]) for first in range(32, len(log), 24 + page_size))


def test_an_answer_whose_reader_was_cancelled_is_kept(tmp_path: Path) -> None:
    async def put_and_leave(journal: Journal) -> None:
        task = asyncio.create_task(journal.put_completion(KEY, 0, ASKED, b"paid"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with Journal(tmp_path / "j") as journal:
        asyncio.run(put_and_leave(journal))
    with Journal(tmp_path / "j") as journal:
        assert journal.completion(KEY, 0, ASKED) == b"paid"


def test_a_full_disk_is_an_error_that_keeps_what_was_saved(tmp_path: Path) -> None:
    # A limit on file size makes write() fail as a full disk does.
    program = textwrap.dedent("""
        import asyncio, resource, sys
        from pathlib import Path
        from stillhouse.errors import StoreError
        from stillhouse.inference import Journal
        from stillhouse.store import digest
        async def main():
            with Journal(Path(sys.argv[1])) as journal:
                await journal.put_completion(digest(0), 0, digest("q"), b"kept")
                resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
                try:
                    await asyncio.gather(*(
                        journal.put_completion(digest(n), 0, digest("q"), b"x" * 50_000) for n in range(1, 20)))
                except StoreError as error:
                    print(error)
        asyncio.run(main())
    """)
    output = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "j")], capture_output=True, text=True, timeout=240, check=True
    ).stdout
    assert f"journal {tmp_path / 'j'}: cannot be written: " in output
    assert "Free some space" in output
    with Journal(tmp_path / "j") as journal:
        assert journal.completion(digest(0), 0, digest("q")) == b"kept"


def test_of_answers_that_come_together_those_that_still_fit_on_the_disk_are_kept(tmp_path: Path) -> None:
    async def put_many(journal: Journal) -> list[object]:
        puts = [journal.put_completion(digest(n), 0, ASKED, b"x" * size) for n, size in enumerate([900_000, 10, 20])]
        return list(await asyncio.gather(*puts, return_exceptions=True))

    with Journal(tmp_path / "j") as journal:
        pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
        journal._connection.execute(f"PRAGMA max_page_count = {pages + 20}")
        results = asyncio.run(put_many(journal))
        assert isinstance(results[0], StoreError)
        assert results[1:] == [b"x" * 10, b"x" * 20]
    with Journal(tmp_path / "j") as journal:
        assert journal.completion(digest(2), 0, ASKED) == b"x" * 20
        assert journal.completion(digest(0), 0, ASKED) is None


def test_a_file_where_a_folder_is_needed_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(StoreError, match=r"journal\.sqlite3"), open_journal(tmp_path / "store"):
        pass


def test_collections_of_a_store_share_its_journal_and_the_last_one_closes_it(tmp_path: Path) -> None:
    with open_journal(tmp_path) as one:
        with open_journal(str(tmp_path)) as other:
            assert other is one
        assert asyncio.run(one.claim(digest(1)))
    one.disclaim(digest(1))
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(one.claim(digest(2)))
    with open_journal(tmp_path) as again:
        assert again is not one


def test_a_file_that_is_no_database_or_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("prompt,answer\n" * 100)
    with pytest.raises(StoreError, match="database"):
        Journal(tmp_path / "text")
    Journal(tmp_path / "newer").close()
    with closing(sqlite3.connect(tmp_path / "newer")) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="99"):
        Journal(tmp_path / "newer")


def test_places_that_differ_in_one_thing_are_kept_apart_and_reopened(tmp_path: Path) -> None:
    async def put_all(journal: Journal) -> None:
        await journal.put_completion(KEY, 1, ASKED, b"completion")
        for turn in (1, 12):
            for call_index in (0, 1, 12):
                await journal.put_tool_result(KEY, turn, call_index, ASKED, f"{turn} {call_index}".encode())
        await journal.put_tool_result(KEY, 1, 0, digest("another call"), b"another")

    path = tmp_path / "folder" / "j"
    with Journal(path) as journal:
        asyncio.run(put_all(journal))
        assert journal.trajectory(KEY) is None
        asyncio.run(journal.put_trajectory(KEY, b"trajectory"))
    journal.close()
    with Journal(path) as journal:
        assert journal.completion(KEY, 1, ASKED) == b"completion"
        assert journal.completion(KEY, 0, ASKED) is None
        assert journal.tool_result(KEY, 12, 1, ASKED) == b"12 1"
        assert journal.tool_result(KEY, 1, 12, ASKED) == b"1 12"
        assert journal.tool_result(KEY, 1, 0, digest("another call")) == b"another"
        assert journal.completion(KEY, 1, digest("another request")) is None
        assert journal.trajectory(KEY) == b"trajectory"
        assert journal.trajectory(digest("another rollout")) is None
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT hex(rollout_key), turn, call_index, body FROM tool_result").fetchall()
        assert (KEY.upper(), 12, 12, b"12 12") in rows


@pytest.mark.parametrize(("key", "turn"), [("ab", 0), (KEY, -1), (KEY, 1_000_000), (KEY + "00", 0)])
def test_what_has_no_place_is_refused_with_what_was_expected(tmp_path: Path, key: str, turn: int) -> None:
    with Journal(tmp_path / "j") as journal, pytest.raises(ValueError, match="64"):
        asyncio.run(journal.put_completion(key, turn, ASKED, b""))


_PUTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.binary(max_size=3000)), max_size=30)


@settings(max_examples=15)
@given(puts=_PUTS, num_loops=st.integers(1, 3))
def test_writers_at_once_all_get_the_first_answer(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, int, bytes]], num_loops: int
) -> None:
    """Puts at few places, from several loops over two journals, against a dictionary that keeps what came first."""
    path = tmp_path_factory.mktemp("journal") / "j"
    stored: list[tuple[tuple[int, int], bytes]] = []

    async def put_all(journal: Journal, share: list[tuple[int, int, bytes]]) -> None:
        bodies = await asyncio.gather(
            *(journal.put_completion(digest(number), turn, ASKED, body) for number, turn, body in share)
        )
        stored.extend(((number, turn), body) for (number, turn, _), body in zip(share, bodies, strict=True))

    with Journal(path) as one, Journal(path) as two:
        shares = [puts[index::num_loops] for index in range(num_loops)]
        threads = [
            threading.Thread(target=asyncio.run, args=(put_all((one, two)[index % 2], share),))
            for index, share in enumerate(shares)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(stored) == len(puts)
    with Journal(path) as journal:
        for (number, turn), body in stored:
            assert journal.completion(digest(number), turn, ASKED) == body
            assert (number, turn, body) in puts


VERSION_1 = """
CREATE TABLE completion (
    rollout_key BLOB NOT NULL, turn INTEGER NOT NULL, request_digest BLOB NOT NULL, body BLOB NOT NULL,
    UNIQUE (rollout_key, turn, request_digest));
CREATE TABLE tool_result (
    rollout_key BLOB NOT NULL, turn INTEGER NOT NULL, call_index INTEGER NOT NULL, call_digest BLOB NOT NULL,
    body BLOB NOT NULL, UNIQUE (rollout_key, turn, call_index, call_digest));
CREATE TABLE trajectory (rollout_key BLOB NOT NULL UNIQUE, body BLOB NOT NULL);
PRAGMA user_version = 1;
"""


def _write_version_1(path: Path, count: int) -> None:
    asked = bytes.fromhex(ASKED)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1)
        for number in range(count):
            key = bytes.fromhex(digest(number))
            connection.execute("INSERT INTO completion VALUES (?, ?, ?, ?)", (key, 3, asked, b"c%d" % number))
            connection.execute("INSERT INTO tool_result VALUES (?, ?, ?, ?, ?)", (key, 3, 11, asked, b"r%d" % number))
            connection.execute("INSERT INTO trajectory VALUES (?, ?)", (key, b"t%d" % number))
        connection.commit()


def test_answers_of_a_version_1_journal_are_found_again(tmp_path: Path) -> None:
    _write_version_1(tmp_path / "j", 50)
    with Journal(tmp_path / "j") as journal:
        for number in range(50):
            assert journal.completion(digest(number), 3, ASKED) == b"c%d" % number
            assert journal.tool_result(digest(number), 3, 11, ASKED) == b"r%d" % number
            assert journal.trajectory(digest(number)) == b"t%d" % number
        assert asyncio.run(journal.put_completion(digest(7), 3, ASKED, b"other")) == b"c7"
        assert asyncio.run(journal.put_completion(digest(7), 4, ASKED, b"new")) == b"new"
    with closing(sqlite3.connect(tmp_path / "j")) as connection:
        assert connection.execute("SELECT count(*) FROM entry").fetchone() == (151,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_journals_that_open_a_version_1_file_together_agree(tmp_path: Path) -> None:
    _write_version_1(tmp_path / "j", 200)
    program = "import sys; from pathlib import Path; from stillhouse.inference.journal import Journal; "
    program += f"print(Journal(Path(sys.argv[1])).trajectory({digest(199)!r}))"
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "j")], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [child.communicate(timeout=240)[0] for child in children] == ["b't199'\n"] * 3


ACKNOWLEDGING = textwrap.dedent("""
    import asyncio, os, sys
    from pathlib import Path
    from stillhouse.inference.journal import Journal
    from stillhouse.store import digest
    async def roll(journal, name):
        assert await journal.claim(digest(name))
        for turn in range(3):
            await journal.put_completion(digest(name), turn, digest("q"), f"{name} {turn}".encode() * 50)
            os.write(1, f"{name} {turn}\\n".encode())
        await journal.put_trajectory(digest(name), name.encode())
        os.write(1, f"{name} done\\n".encode())
    async def main():
        with Journal(Path(sys.argv[1])) as journal:
            for wave in range(10_000):
                await asyncio.gather(*(roll(journal, f"{sys.argv[2]}.{wave}.{index}") for index in range(20)))
    asyncio.run(main())
""")


def _kill_and_check(path: Path, life: int, after_s: float) -> int:
    command = [sys.executable, "-c", ACKNOWLEDGING, str(path), str(life)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(after_s)
        os.kill(child.pid, signal.SIGKILL)
        acknowledged = (first + child.stdout.read()).decode().splitlines()
    with Journal(path) as journal:
        for line in acknowledged:
            name, what = line.split()
            if what == "done":
                assert journal.trajectory(digest(name)) == name.encode()
            else:
                assert journal.completion(digest(name), int(what), digest("q")) == line.encode() * 50
        assert all(asyncio.run(journal.claim(digest(name))) for name in {line.split()[0] for line in acknowledged})
    return len(acknowledged)


@pytest.mark.parametrize(
    ("num_kills", "longest_s"), [(4, 0.2), pytest.param(30, 0.5, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_kill_9_loses_nothing_acknowledged_and_no_claims_stay(tmp_path: Path, num_kills: int, longest_s: float) -> None:
    moments = random.Random(3)
    counts = [_kill_and_check(tmp_path / "j", life, moments.uniform(0.0, longest_s)) for life in range(num_kills)]
    assert sum(counts) > 20
    with closing(sqlite3.connect(tmp_path / "j")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
