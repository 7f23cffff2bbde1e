"""The journal: what durability and claims cost, against bare SQLite, and at a million rows against ten thousand.

Claim
    A rollout of one turn (claim, look-ups of trajectory and completion, both put and durable) costs about twice the
    CPU of a bare `executemany` of its two rows, tasks and wake-ups of the event loop included. Look-ups at a million
    rows cost what they cost at ten thousand; puts cost somewhat more, as every row changes a page of the index that no
    other row of its batch changes.

Measured
    Bare is `executemany` into a table of the same form, one transaction with fsync for each 256 rows, in the main
    thread: nobody waits for a row, nothing is looked up. Ours is 256 rollouts at a time on uvloop, each as the engine
    does it. Both sides put the same bodies under new random keys in every round. CPU seconds count the whole process,
    the journal's thread included. The large journal is filled beforehand, in batches, by random keys as well. Ratios
    below 1 would mean that ours costs less.

Learnt (two cores that others used as well, three rounds)
        a rollout over its two rows put by executemany     1.61 (1.36..1.84)      44.8 us of CPU (41.1..46.9)
        a rollout at 1,000,000 rows over 10,000            1.52 (1.42..1.59)
        a look-up at 1,000,000 rows over 10,000            1.22 (1.10..1.35)
    A journal of 1,000,000 rows (1 GB) opens in 2 to 11 ms. One of version 1 with 2,000,000 rows (2.2 GB) is brought to
    version 2 in 49 s, once, and needs its size again on the disk; with the index kept row by row it took 84 s.
    Digests of records cost less than other load hides: 65 us of CPU a rollout (56..72) with, 69 us (58..72) without,
    five rounds of 3,000 rollouts each. A journal of version 2 with 300,000 rows (337 MB) gets them in 4.4 s, once.
    A step of SQLite for each row lets go of the GIL for each row, and taking it back from a busy event loop costs
    more than the row: 52 us of CPU and 212 us of wall time a row with `executemany`, 12 us and 32 us with one statement
    for the batch (19 us of wall time either way when nothing else runs). Hence the form of `schema.INSERT`.
    A claim as a row of its own would cost two changes of the index and a commit's latency before the first request; a
    lock of the kernel costs 4 us and no latency.
    Half of a put is pages: random keys change a page of the index each, which is copied to the WAL, summed, and copied
    to the file. In order they would take 4 us a row instead of 12 us. Intervals of 2, 5, 10 and 20 ms between batches
    differ by less than other load on the machine does.
"""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.frame.rounds import alternate, argument_parser, measured, publish, ratio, spread
from stillhouse.inference.journal import Journal
from stillhouse.inference.journal.schema import COMPLETION, PLACE_BYTES, TRAJECTORY, digest_of, place

_CONCURRENCY: Final = 256
_COMPLETION: Final = b"c" * 600
_TRAJECTORY: Final = b"t" * 1100
"""Sizes of a short question and its answer."""


def roll_out(journal: Journal, keys: list[str]) -> None:
    """What the engine asks of the journal for rollouts of one turn."""
    request_digest = os.urandom(32).hex()

    async def work(waiting: Iterator[str]) -> None:
        for key in waiting:
            if not await journal.claim(key) or journal.trajectory(key) is not None:
                raise RuntimeError(f"rollout {key} is new, and the journal knows it")
            if journal.completion(key, 0, request_digest) is None:
                await journal.put_completion(key, 0, request_digest, _COMPLETION)
            await journal.put_trajectory(key, _TRAJECTORY)

    async def work_all() -> None:
        waiting = iter(keys)
        await asyncio.gather(*(work(waiting) for _ in range(_CONCURRENCY)))

    uvloop.run(work_all())


def look_up(journal: Journal, keys: list[str]) -> None:
    """One look-up of each trajectory, all of which are there."""
    if any(journal.trajectory(key) is None for key in keys):
        raise RuntimeError("a trajectory that was put is gone")


class Bare:
    """A table like the journal's, without a journal."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE entry (place BLOB NOT NULL UNIQUE, body BLOB NOT NULL)")

    def put(self, num_rollouts: int) -> None:
        """The rows of `num_rollouts` new rollouts, in transactions of 256 rows."""
        for start in range(0, num_rollouts, 128):
            rows = []
            for _ in range(min(128, num_rollouts - start)):
                rows += [(os.urandom(PLACE_BYTES), _COMPLETION), (os.urandom(PLACE_BYTES), _TRAJECTORY)]
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO entry VALUES (?, ?) ON CONFLICT DO NOTHING", rows)
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()


def fill(path: Path, num_rows: int, num_known: int) -> list[str]:
    """Rollout keys of the last `num_known` of the trajectories in a journal made with `num_rows` rows."""
    Journal(path).close()
    known: list[bytes] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # It may be lost by a power cut, and is then made again.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -262144")
        for start in range(0, num_rows // 2, 10_000):
            keys = [os.urandom(32) for _ in range(min(10_000, num_rows // 2 - start))]
            connection.execute("BEGIN")
            for kind, body in ((COMPLETION, _COMPLETION), (TRAJECTORY, _TRAJECTORY)):
                places = [place(key, kind) for key in keys]
                rows = [(where, body, digest_of(where, body)) for where in places]
                connection.executemany("INSERT INTO entry VALUES (?, ?, ?)", rows)
            connection.execute("COMMIT")
            known = [*known, *keys][-num_known:]
    return [key.hex() for key in known]


def new_keys(count: int) -> list[str]:
    """Keys of rollouts that nobody has begun."""
    return [os.urandom(32).hex() for _ in range(count)]


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=5000, help="rollouts of a round")
    parser.add_argument("--few", type=int, default=10_000, help="rows of the small journal")
    parser.add_argument("--many", type=int, default=1_000_000, help="rows of the large journal")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        known_few = fill(folder / "few", options.few, options.rollouts)
        known_many = fill(folder / "many", options.many, options.rollouts)
        opening = measured(lambda: Journal(folder / "many").close())
        with (
            Journal(folder / "few") as few,
            Journal(folder / "many") as many,
            Journal(folder / "own") as own,
            closing(Bare(folder / "bare")) as bare,
        ):
            costs = alternate(
                {
                    "bare": partial(bare.put, options.rollouts),
                    "ours": lambda: roll_out(own, new_keys(options.rollouts)),
                    "put few": lambda: roll_out(few, new_keys(options.rollouts)),
                    "put many": lambda: roll_out(many, new_keys(options.rollouts)),
                    "look up few": partial(look_up, few, known_few),
                    "look up many": partial(look_up, many, known_many),
                },
                options.rounds,
            )
    cpu = {side: [cost.cpu_s for cost in side_costs] for side, side_costs in costs.items()}
    figures = {
        "rollout_over_bare": ratio(cpu["ours"], cpu["bare"]),
        "put_many_over_few": ratio(cpu["put many"], cpu["put few"]),
        "look_up_many_over_few": ratio(cpu["look up many"], cpu["look up few"]),
        "rollout_us": spread([seconds / options.rollouts * 1e6 for seconds in cpu["ours"]]),
    }
    lines = [
        "CPU, ratios of rounds in turn",
        f"  a rollout over its two rows put by executemany      {figures['rollout_over_bare']}",
        f"  a rollout at {options.many:,} rows over {options.few:,}       {figures['put_many_over_few']}",
        f"  a look-up at {options.many:,} rows over {options.few:,}       {figures['look_up_many_over_few']}",
        f"  a rollout, in us of CPU on this machine             {figures['rollout_us']}",
        f"  to open and close {options.many:,} rows, in s           {opening.wall_s:.3f}",
    ]
    publish(lines, {**{key: asdict(value) for key, value in figures.items()}, "open_s": opening.wall_s}, options.json)


if __name__ == "__main__":
    main()
