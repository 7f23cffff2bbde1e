"""Answers that travel between the journal and the parts of it that other machines write."""

import asyncio
from pathlib import Path

from stillhouse.inference.journal import open_journal
from stillhouse.inference.journal.parts import lend, take_back, used

ONE, OTHER, ASKED = "11" * 32, "22" * 32, "aa" * 32


def put(folder: Path, rollout: str, body: bytes) -> bytes:
    async def write() -> bytes:
        with open_journal(folder) as journal:
            return await journal.put_completion(rollout, 0, ASKED, body)

    return asyncio.run(write())


def get(folder: Path, rollout: str) -> bytes | None:
    with open_journal(folder) as journal:
        return journal.completion(rollout, 0, ASKED)


def test_a_part_is_lent_what_concerns_it_and_gives_back_all_it_has(tmp_path: Path):
    store, part = tmp_path / "store", tmp_path / "store" / "journals" / "part"
    put(store, ONE, b"paid before")
    put(store, OTHER, b"of another shard")
    lend(store, part, [ONE])
    assert get(part, ONE) == b"paid before"
    assert get(part, OTHER) is None
    put(part, "33" * 32, b"paid elsewhere")
    put(part, OTHER, b"second")
    take_back(part, store)
    assert get(store, "33" * 32) == b"paid elsewhere"
    assert get(store, OTHER) == b"of another shard", "the first answer at a place stays"
    assert not part.exists()


def test_a_part_in_use_is_left_alone(tmp_path: Path):
    store, part = tmp_path / "store", tmp_path / "part"

    async def meanwhile() -> None:
        async with used(part):
            await asyncio.to_thread(put, part, ONE, b"paid elsewhere")
            take_back(part, store)
            lend(store, part, [ONE])
        assert part.exists()

    asyncio.run(meanwhile())
    take_back(part, store)
    assert get(store, ONE) == b"paid elsewhere"


def test_whoever_comes_second_to_a_part_waits_for_the_first(tmp_path: Path):
    order = []

    async def use(name: str, entered: asyncio.Event, leave: asyncio.Event) -> None:
        async with used(tmp_path, look_s=0.001):
            order.append(name)
            entered.set()
            await leave.wait()
            order.append(f"{name} left")

    async def both() -> None:
        entered, leave, other = asyncio.Event(), asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(use("first", entered, leave))
        await entered.wait()
        second = asyncio.create_task(use("second", other, leave))
        await asyncio.sleep(0.02)
        leave.set()
        await asyncio.gather(first, second)

    asyncio.run(both())
    assert order == ["first", "first left", "second", "second left"]


def test_a_store_without_a_journal_lends_nothing(tmp_path: Path):
    lend(tmp_path / "store", tmp_path / "part", [ONE])
    take_back(tmp_path / "part", tmp_path / "store")
    assert not (tmp_path / "store").exists()
