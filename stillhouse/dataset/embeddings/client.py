"""One request to `/embeddings` of an OpenAI-compatible endpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.usage import read_cost, read_usage
from stillhouse.types import JsonObject, TokenUsage, Turn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stillhouse.inference.http_client import HttpAnswer, HttpClient


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedded(Completion):
    """An answer that says nothing and carries vectors; its turn tells what it took, as any other's does."""

    vectors: "NDArray[np.float32]"
    """One row of length 1 (Euclidean) for each text, in their order."""


async def embed_batch(client: "HttpClient", endpoint: Endpoint, texts: Sequence[str]) -> Embedded:
    """The vectors of `texts` by one attempt at one request.

    Raises:
        RequestFailed: there are none, or not one for each text.
    """
    body = {"model": endpoint.model, "input": list(texts), "encoding_format": "float"}
    answer = await client.post("embeddings", body)
    told = _parsed(answer)
    usage = read_usage(told.get("usage"))
    if "prompt_tokens" in usage:
        usage["completion_tokens"] = 0
    return Embedded(
        message={"role": "assistant"},
        turn=Turn("stop", usage, answer.latency_s, endpoint.model, cost_usd=_cost(told, usage, endpoint)),
        limits=answer.limits,
        vectors=_vectors(told, len(texts)),
    )


def _parsed(answer: "HttpAnswer") -> JsonObject:
    try:
        told = orjson.loads(answer.content)
    except orjson.JSONDecodeError as error:
        raise _unusable(f"is not valid JSON: {error}") from error
    if not isinstance(told, dict):
        raise _unusable(f"is not a JSON object: {answer.content[:80]!r}")
    return told


def _cost(told: JsonObject, usage: TokenUsage, endpoint: Endpoint) -> float | None:
    cost = read_cost(told.get("usage"))
    return endpoint.price.of(usage) if cost is None and endpoint.price is not None else cost


def _vectors(told: JsonObject, count: int) -> "NDArray[np.float32]":
    """The vectors by the index each carries, scaled to length 1."""
    rows: Any = told.get("data")
    if not isinstance(rows, list):
        raise _unusable(f"has no data in it: {str(told)[:200]}")
    try:
        by_index = {row["index"]: row["embedding"] for row in rows}
        vectors = np.array([by_index[index] for index in range(count)], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(f"has not one vector of one size for each of {count} texts: {error!r}") from error
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if vectors.ndim != 2 or not np.all(np.isfinite(lengths) & (lengths > 0)):
        raise _unusable("has a vector that points nowhere")
    return (vectors / lengths).astype(np.float32)


def _unusable(told: str) -> RequestFailed:
    return RequestFailed(Failure(FailureKind.TRANSIENT, f"the answer {told}", 200))
