"""The journal of a run on S3, for which moto's server answers."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.store import digest
from tasks.cache.journal import journal_of
from tasks.run.context import RunContext

pytestmark = pytest.mark.usefixtures("s3")


def test_answers_are_shared_at_the_last_collections_end(
    make_context: Callable[..., RunContext], tmp_path: Path, s3: Any
) -> None:
    def machine(name: str) -> RunContext:
        return make_context(store="s3://bucket/runs", scratch=str(tmp_path / name))

    async def put(context: RunContext, question: str, others_wait: asyncio.Event) -> None:
        async with journal_of(context) as journal:
            await journal.put_completion(digest(question), 0, digest("request"), b"answer")
            await others_wait.wait()

    async def collect() -> int:
        stop = asyncio.Event()
        context = machine("there")
        first, second = (asyncio.create_task(put(context, question, stop)) for question in "ab")
        await asyncio.wait([first, second], timeout=0.1)
        stop.set()
        await asyncio.gather(first, second)
        return len(s3.client().list_objects_v2(Bucket="bucket")["Contents"])

    assert asyncio.run(collect()) == 1

    async def look(name: str) -> list[bytes | None]:
        async with journal_of(machine(name)) as journal:
            return [journal.completion(digest(question), 0, digest("request")) for question in "abc"]

    assert asyncio.run(look("here")) == [b"answer", b"answer", None]
