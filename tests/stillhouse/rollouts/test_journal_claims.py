"""Claims: no rollout is paid for by two journals at once, and none waits for a journal that is gone."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stillhouse.inference.journal import Journal
from stillhouse.store import digest

Two = tuple[Journal, Journal]
KEY = digest("rollout")
ASKED = digest("request")
CLAIMING = textwrap.dedent("""
    import asyncio, sys, time
    from pathlib import Path
    from stillhouse.inference.journal import Journal
    journal = Journal(Path(sys.argv[1]))
    print(asyncio.run(journal.claim(sys.argv[2])), flush=True)
    time.sleep(60)
""")


def claim(journal: Journal, key: str = KEY) -> bool:
    return asyncio.run(journal.claim(key))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    """Yield two journals of one file."""
    with Journal(tmp_path / "j") as one, Journal(tmp_path / "j") as other:
        yield one, other


def test_of_two_journals_one_gets_a_rollout_and_the_other_gets_another(two: Two) -> None:
    one, other = two
    assert claim(one)
    assert not claim(one)
    assert not claim(other)
    assert claim(other, digest("another"))
    assert not claim(one, digest("another"))


def test_what_is_disclaimed_is_free_for_others_at_once_and_what_another_has_stays(two: Two, tmp_path: Path) -> None:
    one, other = two
    assert claim(one)
    with Journal(tmp_path / "j") as third:
        third.disclaim(KEY)
        assert not claim(other)
    one.disclaim(KEY)
    one.disclaim(KEY)
    assert claim(other)


def test_closing_a_journal_frees_its_claims_and_nobody_elses(two: Two, tmp_path: Path) -> None:
    one, other = two
    assert claim(one, digest(1))
    with Journal(tmp_path / "j") as third:
        assert claim(third, digest(3))
    assert claim(other, digest(3))
    assert not claim(other, digest(1))


def test_a_finished_rollout_is_granted_to_everybody_and_held_by_nobody(two: Two) -> None:
    one, other = two
    assert claim(one)
    asyncio.run(one.put_trajectory(KEY, b"done"))
    for journal in (other, other, one, other):
        assert claim(journal)
        assert journal.trajectory(KEY) == b"done"


def test_who_claims_after_another_sees_all_that_it_made_durable(two: Two) -> None:
    one, other = two
    assert claim(one)
    asyncio.run(one.put_completion(KEY, 0, ASKED, b"paid"))
    asyncio.run(one.put_tool_result(KEY, 0, 1, ASKED, b"result"))
    one.disclaim(KEY)
    assert claim(other)
    assert other.completion(KEY, 0, ASKED) == b"paid"
    assert other.tool_result(KEY, 0, 1, ASKED) == b"result"
    assert other.completion(KEY, 1, ASKED) is None
    assert other.trajectory(KEY) is None


def test_a_new_rollout_finds_what_it_put_itself(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        assert claim(journal)
        assert journal.completion(KEY, 0, ASKED) is None
        asyncio.run(journal.put_completion(KEY, 0, ASKED, b"paid"))
        assert journal.completion(KEY, 0, ASKED) == b"paid"
        assert journal.completion(KEY, 1, ASKED) is None
        asyncio.run(journal.put_trajectory(KEY, b"done"))
        assert journal.trajectory(KEY) == b"done"


def test_a_rollout_cut_off_while_it_writes_is_free_once_its_answer_is_durable(tmp_path: Path) -> None:
    async def cut_off(one: Journal, two: Journal) -> None:
        assert await one.claim(KEY)
        # A batch goes off at once; what comes now waits for the next.
        await one.put_completion(digest("other"), 0, ASKED, b"x")
        task = asyncio.create_task(one.put_completion(KEY, 0, ASKED, b"paid"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        one.disclaim(KEY)
        deadline = time.monotonic() + 60
        while not await two.claim(KEY):
            assert time.monotonic() < deadline
            await asyncio.sleep(0)
        assert two.completion(KEY, 0, ASKED) == b"paid"

    for round_index in range(20):
        path = tmp_path / str(round_index)
        with Journal(path) as one, Journal(path) as two:
            asyncio.run(cut_off(one, two))


def test_the_claims_of_a_killed_process_are_taken_over_at_once(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLAIMING, str(tmp_path / "j"), KEY], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        with Journal(tmp_path / "j") as journal:
            assert not claim(journal)
            os.kill(child.pid, signal.SIGKILL)
            child.wait(120)
            assert claim(journal)


def test_a_program_started_meanwhile_does_not_keep_claims_alive(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as one:
        assert claim(one)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with Journal(tmp_path / "j") as two:
            assert claim(two)
    finally:
        child.kill()
        child.wait(120)


def test_many_claims_leave_nothing_behind(tmp_path: Path) -> None:
    async def run_all(journal: Journal) -> None:
        for number in range(100):
            assert await journal.claim(digest(number))
            if number % 2:
                journal.disclaim(digest(number))
            else:
                await journal.put_trajectory(digest(number), b"done")

    with Journal(tmp_path / "j") as journal:
        asyncio.run(run_all(journal))
    assert sum(file.stat().st_size for file in (tmp_path / "j-claims").iterdir()) == 0


def test_processes_that_work_off_one_list_pay_once_for_each_rollout(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import asyncio, random, sys
        from pathlib import Path
        from stillhouse.inference.journal import Journal
        from stillhouse.store import digest
        async def roll(journal, key):
            while not await journal.claim(key):
                await asyncio.sleep(0.01)
            if journal.trajectory(key) is None:
                if journal.completion(key, 0, digest("q")) is None:
                    print("paid", key)
                    await asyncio.sleep(random.random() * 0.02)
                    await journal.put_completion(key, 0, digest("q"), sys.argv[2].encode())
                await journal.put_trajectory(key, journal.completion(key, 0, digest("q")))
            print("told", key, journal.trajectory(key).decode())
        async def main():
            keys = [digest(number) for number in range(100)]
            random.shuffle(keys)
            with Journal(Path(sys.argv[1])) as journal:
                await asyncio.gather(*(roll(journal, key) for key in keys))
        asyncio.run(main())
    """)
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "j"), name], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two", "three")
    ]
    lines = [line for child in children for line in child.communicate(timeout=240)[0].splitlines()]
    paid = [line for line in lines if line.startswith("paid")]
    told = [line for line in lines if line.startswith("told")]
    assert len(paid) == len(set(paid)) == 100
    assert len(told) == 300
    assert len(set(told)) == 100
    with closing(sqlite3.connect(tmp_path / "j")) as connection:
        assert connection.execute("SELECT count(*) FROM completion").fetchone() == (100,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
