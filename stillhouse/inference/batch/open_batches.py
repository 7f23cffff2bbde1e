"""Batches that are under way at the endpoint, and who waits for their answers."""

import asyncio
import logging
from dataclasses import dataclass, field

from stillhouse.inference.batch.notes import BatchNote
from stillhouse.inference.batch.wire import BatchEndpoint, end_failure
from stillhouse.inference.failures import RequestFailed
from stillhouse.types import JsonObject

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class BatchRequest:
    digest: str
    body: bytes
    answer: "asyncio.Future[JsonObject]"

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            # A copy for each: an exception collects the traceback of every task that raises it.
            self.answer.set_exception(RequestFailed(error.failure) if isinstance(error, RequestFailed) else error)


@dataclass(slots=True, eq=False)
class OpenBatch:
    """Hands out the answers of one batch once it has ended."""

    wire: BatchEndpoint
    note: BatchNote
    requests: dict[str, BatchRequest] = field(default_factory=dict)
    """Waiting requests by custom id."""
    answered: set[str] = field(default_factory=set)
    """Custom ids of requests that got their answer or their failure."""
    watch: "asyncio.Task[None] | None" = None

    def follow(self) -> None:
        """Wait for the end of the batch in a task, unless one does already."""
        if self.watch is None or self.watch.done():
            self.watch = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            ended = await self.wire.ended(str(self.note.batch_id))
            while self.requests:
                # Those that join while the files are read may have missed their line.
                before = list(self.requests)
                for file_id in ended.file_ids:
                    async for row in self.wire.lines(file_id):
                        self._answer(str(row.get("custom_id")), row)
                missing = RequestFailed(end_failure(ended))
                for custom_id in before:
                    self._answer(custom_id, missing)
        # Whatever it is, the waiting requests must get it.
        except Exception as error:
            for custom_id in list(self.requests):
                self._answer(custom_id, error)
            return
        _LOG.info("batch %s: %s, %d answers", ended.id, ended.status, len(self.answered))

    def _answer(self, custom_id: str, result: JsonObject | Exception) -> None:
        """End one request's wait; the answer to a cancelled one is left for the next run."""
        request = self.requests.pop(custom_id, None)
        if request is None or request.answer.done():
            return
        self.answered.add(custom_id)
        if isinstance(result, Exception):
            request.fail(result)
        else:
            request.answer.set_result(result)
