"""Anthropic's Message Batches: https://platform.claude.com/docs/en/build-with-claude/batch-processing.

They carry no tag: a batch whose creation was not confirmed is known by the ids of its requests, which its results hold,
so it is waited for.
"""

from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from stillhouse.inference.batch.wire import AGAIN, Batch, BatchEndpoint, BatchNote
from stillhouse.inference.error_body import classify
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.transport import HttpAnswer
from stillhouse.store import exact_json
from stillhouse.types import JsonObject

_ERRORS: Final = "invalid_request authentication billing permission not_found rate_limit timeout overloaded"
_STATUS: Final = dict(zip(_ERRORS.split(), (400, 401, 402, 403, 404, 429, 504, 529), strict=True))
"""https://platform.claude.com/docs/en/api/errors"""
_CLOCKS_S: Final = 600.0
"""How far the endpoint's clock and ours may be apart."""


class MessageBatches(BatchEndpoint):
    """Batches at Anthropic."""

    batches = "messages/batches"
    next_page = "after_id"
    results = "messages/batches/{}/results"

    def parsed(self, body: Any) -> Batch:
        created = datetime.fromisoformat(body["created_at"]).timestamp()
        status = "completed" if body["processing_status"] == "ended" else str(body["processing_status"])
        num_requests = sum(body["request_counts"].values())
        return Batch(str(body["id"]), status, created, None, (str(body["id"]),), (), num_requests)

    def answer(self, row: JsonObject, *, latency_s: float) -> HttpAnswer:
        result: JsonObject = row["result"] if isinstance(row.get("result"), dict) else {}
        kind = result.get("type")
        if kind == "succeeded":
            return HttpAnswer(exact_json.dumps(result.get("message")), {}, latency_s)
        if kind == "errored" and isinstance(told := result.get("error"), dict):
            error = told.get("error") or {}
            raise RequestFailed(
                classify(_STATUS.get(str(error.get("type")).removesuffix("_error"), 500), {}, told, datetime.now(UTC))
            )
        if kind == "canceled":
            raise RequestFailed(Failure(FailureKind.PERMANENT, f"the batch was cancelled at the endpoint. {AGAIN}"))
        raise RequestFailed(
            Failure(FailureKind.TRANSIENT, f"the batch ended without an answer to this request: {kind}")
        )

    async def make(self, tag: str, path: str, bodies: Mapping[str, bytes]) -> JsonObject:
        return {
            "requests": [
                {"custom_id": custom_id, "params": orjson.Fragment(body)} for custom_id, body in bodies.items()
            ]
        }

    async def is_of(self, batch: Batch, note: BatchNote) -> bool:
        if batch.num_requests != len(note.custom_ids) or batch.created < note.created - _CLOCKS_S:
            return False
        await self.ended(batch.id)
        async with aclosing(self.lines(batch.id)) as rows:
            async for row in rows:
                return row.get("custom_id") in note.custom_ids
        return False
