"""What a batch's files and its end say of each request: a completion, or a failure as over HTTP."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from stillhouse.inference.completion import Completion, read_completion
from stillhouse.inference.endpoint import Price
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed, classify
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from openai.types import Batch

_RATE_CODES: Final = frozenset({"token_limit_exceeded", "rate_limit_exceeded"})
_ENDED: Final = {"batch_expired": FailureKind.TRANSIENT, "batch_cancelled": FailureKind.PERMANENT}
"""Somebody who cancels a batch does not want it asked for again."""
_RETRY_S: Final = 60.0
"""Wait before a batch that was too much at once is asked for again; the endpoint gives no hint."""


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[JsonObject]:
    """The objects of a JSONL file that arrives in pieces. Lines that are no JSON object are left out.

    Lines end at a line feed alone: an answer may hold other characters that Python's `splitlines` splits at.
    """
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if (row := _parsed(line)) is not None:
                yield row
    if (row := _parsed(rest)) is not None:
        yield row


def read_answer(
    row: JsonObject, *, latency_s: float, model: str, record_tokens: bool, price: Price | None
) -> Completion:
    """The completion in one line of a batch's output or error file.

    Args:
        row: the line.
        latency_s: seconds from asking to the answer.
        model: the model asked for, where the answer does not name one.
        record_tokens: whether token ids were asked for.
        price: what a batch's tokens cost, where the answer does not say what it cost.

    Raises:
        RequestFailed: there is none in it.
    """
    response = row.get("response")
    if not isinstance(response, dict):
        raise RequestFailed(_line_failure(row.get("error")))
    status, body = response.get("status_code"), response.get("body")
    headers = {"x-request-id": str(response["request_id"])} if response.get("request_id") else {}
    if status != 200:
        status = status if isinstance(status, int) else 500
        raise RequestFailed(classify(status, headers, body, datetime.now(UTC)))
    completion = read_completion(
        orjson.dumps(body), headers, latency_s=latency_s, model=model, record_tokens=record_tokens
    )
    if completion.turn.cost_usd is not None or price is None:
        return completion
    return replace(completion, turn=replace(completion.turn, cost_usd=price.of(completion.turn.usage)))


def end_failure(batch: "Batch") -> Failure:
    """Why a request has no answer although its batch has ended."""
    if batch.status == "cancelled":
        told = f"batch {batch.id} was cancelled at the endpoint. Run the same command again to ask for the rest anew"
        return Failure(FailureKind.PERMANENT, told)
    faults = batch.errors.data if batch.errors is not None else None
    if not faults:
        told = f"batch {batch.id} ended as {batch.status!r} without an answer to this request"
        return Failure(FailureKind.TRANSIENT, told)
    error = {"code": faults[0].code, "message": faults[0].message}
    failure = classify(429 if faults[0].code in _RATE_CODES else 400, {}, {"error": error}, datetime.now(UTC))
    told = f"batch {batch.id} {batch.status}: {faults[0].message} ({faults[0].code})"
    wait_s = _RETRY_S if failure.kind is FailureKind.RATE else None
    return replace(failure, message=told, status=None, retry_after_s=wait_s)


def _line_failure(error: Any) -> Failure:
    """The failure of a request that the endpoint did not come to, or could not send on."""
    error = error if isinstance(error, dict) else {}
    if (code := error.get("code")) in _ENDED:
        return Failure(_ENDED[code], f"the batch ended first: {error.get('message') or code}")
    return classify(500, {}, {"error": error}, datetime.now(UTC))


def _parsed(line: bytes) -> JsonObject | None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None
