"""`OpenBatch`: a batch that is under way, or that ended while nobody listened, and who waits for its answers."""

import asyncio
import logging
from dataclasses import dataclass, field

from stillhouse.inference.batch.answers import end_failure
from stillhouse.inference.batch.notes import BatchNote
from stillhouse.inference.batch.wire import BatchEndpoint
from stillhouse.inference.failures import RequestFailed
from stillhouse.types import JsonObject

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class BatchRequest:
    """One request that somebody waits for, or whose answer nobody has fetched yet."""

    digest: str
    body: bytes
    answer: "asyncio.Future[JsonObject]"

    def fail(self, error: Exception) -> None:
        """Ends the wait, unless it has ended."""
        if not self.answer.done():
            # Of its own for each: an exception collects the traceback of everyone who raises it.
            self.answer.set_exception(RequestFailed(error.failure) if isinstance(error, RequestFailed) else error)


@dataclass(slots=True, eq=False)
class OpenBatch:
    """Hands out the answers of one batch when it has ended."""

    wire: BatchEndpoint
    note: BatchNote
    requests: dict[str, BatchRequest] = field(default_factory=dict)
    """By custom id: those that somebody waits for."""
    answered: set[str] = field(default_factory=set)
    """Custom ids of those that waited and were answered, or were told why not."""
    watch: "asyncio.Task[None] | None" = None
    """Waits for the batch's end."""

    def join(self, custom_id: str, request: BatchRequest) -> None:
        """Has a request answered from here that is equal to the one the batch holds under that id."""
        self.requests[custom_id] = request
        self.follow()

    def follow(self) -> None:
        """Has the answers handed out once the batch has ended, unless that is seen to already."""
        if self.watch is None or self.watch.done():
            self.watch = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        """Waits for the end of the batch and hands out what it holds."""
        try:
            ended = await self.wire.ended(str(self.note.batch_id))
            while self.requests:
                # Those that join while the files are read may have missed their line.
                before = list(self.requests)
                for file_id in (ended.output_file_id, ended.error_file_id):
                    if file_id is not None:
                        async for row in self.wire.lines(file_id):
                            self._answer(str(row.get("custom_id")), row)
                missing = RequestFailed(end_failure(ended))
                for custom_id in before:
                    self._answer(custom_id, missing)
        # Whatever it is, those who wait must hear of it.
        except Exception as error:
            for custom_id in list(self.requests):
                self._answer(custom_id, error)
            return
        _LOG.info("batch %s: %s, %d answers", ended.id, ended.status, len(self.answered))

    def _answer(self, custom_id: str, found: JsonObject | Exception) -> None:
        """Ends one request's wait; the answer to one that nobody waits for any more is left for the next run."""
        request = self.requests.pop(custom_id, None)
        if request is None or request.answer.done():
            return
        self.answered.add(custom_id)
        if isinstance(found, Exception):
            request.fail(found)
        else:
            request.answer.set_result(found)
