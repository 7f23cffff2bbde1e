import asyncio
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.rollouts import Journal, open_journal
from stillhouse.store import digest

KEY = digest("rollout")
ASKED = digest("request")


def test_what_was_put_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "journal.sqlite3"
    with Journal(path) as journal:
        asyncio.run(journal.put_completion(KEY, 0, ASKED, b"answer"))
        asyncio.run(journal.put_tool_result(KEY, 0, 1, ASKED, b"result"))
        asyncio.run(journal.put_trajectory(KEY, b"trajectory"))
    with Journal(path) as journal:
        assert journal.completion(KEY, 0, ASKED) == b"answer"
        assert journal.tool_result(KEY, 0, 1, ASKED) == b"result"
        assert journal.trajectory(KEY) == b"trajectory"
        assert journal.completion(KEY, 1, ASKED) is None
        assert journal.completion(KEY, 0, digest("another request")) is None
        assert journal.tool_result(KEY, 0, 0, ASKED) is None
        assert journal.trajectory(digest("another rollout")) is None


def test_the_first_answer_at_a_place_holds_for_everybody(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as one, Journal(tmp_path / "j") as two:
        assert asyncio.run(one.put_completion(KEY, 0, ASKED, b"first")) == b"first"
        assert asyncio.run(two.put_completion(KEY, 0, ASKED, b"second")) == b"first"
        assert one.completion(KEY, 0, ASKED) == b"first"


def test_answers_that_come_together_share_a_commit(tmp_path: Path) -> None:
    async def put_many(journal: Journal) -> None:
        await asyncio.gather(*(journal.put_completion(KEY, turn, ASKED, b"x" * 200) for turn in range(2000)))

    with Journal(tmp_path / "j") as journal:
        started = time.perf_counter()
        asyncio.run(put_many(journal))
        elapsed = time.perf_counter() - started
        assert journal.completion(KEY, 1999, ASKED) is not None
    # One fsync each would take 2,000 times a millisecond or more on any disk that honours it.
    assert elapsed < 1.5


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


def test_processes_that_write_at_once_do_not_harm_the_file(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import asyncio, sys
        from pathlib import Path
        from stillhouse.rollouts import Journal
        from stillhouse.store import digest
        async def main():
            with Journal(Path(sys.argv[1])) as journal:
                for start in range(0, 200, 20):
                    await asyncio.gather(*(
                        journal.put_completion(digest(n), 0, digest("q"), sys.argv[2].encode())
                        for n in range(start, start + 20)))
        asyncio.run(main())
    """)
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "j"), name]) for name in ("one", "two", "three")
    ]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    with Journal(tmp_path / "j") as journal:
        stored = [journal.completion(digest(n), 0, digest("q")) for n in range(200)]
    assert all(body in (b"one", b"two", b"three") for body in stored)
    connection = sqlite3.connect(tmp_path / "j")
    assert connection.execute("SELECT count(*) FROM completion").fetchone() == (200,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_full_disk_is_an_error_that_keeps_what_was_saved(tmp_path: Path) -> None:
    # A limit on file size makes write() fail as a full disk does.
    program = textwrap.dedent("""
        import asyncio, resource, sys
        from pathlib import Path
        from stillhouse.errors import StoreError
        from stillhouse.rollouts import Journal
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
    told = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "j")], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert f"journal {tmp_path / 'j'}: cannot be written: " in told
    assert "Free some space" in told
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
    with pytest.raises(StoreError, match=r"store/journal\.sqlite3: cannot be opened"):
        open_journal(tmp_path / "store")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("prompt,answer\n" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Journal(tmp_path / "j")


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    connection = sqlite3.connect(tmp_path / "j")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="it has version 99"):
        Journal(tmp_path / "j")


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.close()
    journal.close()
    with pytest.raises(RuntimeError, match="is closed"):
        asyncio.run(journal.put_trajectory(KEY, b""))
