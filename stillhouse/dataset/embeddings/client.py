"""One request to `/embeddings` of an OpenAI-compatible endpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.usage import read_cost, read_usage
from stillhouse.types import JsonObject, Turn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stillhouse.inference.http_client import HttpClient
    from stillhouse.inference.rate_limit import RateLimits


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """The answer to one request."""

    turn: Turn
    """Usage and cost."""
    limits: "RateLimits | None"
    vectors: "NDArray[np.float32]"
    """One row of length 1 (Euclidean) for each text, in their order."""


async def embed_batch(client: "HttpClient", endpoint: Endpoint, texts: Sequence[str]) -> Embedded:
    """The vectors of `texts`, by one attempt at one request.

    Raises:
        RequestFailed: there are none, or not one for each text.
    """
    body = {"model": endpoint.model, "input": list(texts), "encoding_format": "float"}
    answer = await client.post("embeddings", body)
    content = answer.body()
    if not isinstance(content, dict):
        raise _unusable(f"is not a JSON object: {answer.content[:80]!r}")
    usage = read_usage(content.get("usage"))
    if "prompt_tokens" in usage:
        usage["completion_tokens"] = 0
    turn = Turn("stop", usage, answer.latency_s, endpoint.model, cost_usd=read_cost(content.get("usage")))
    return Embedded(turn=endpoint.with_cost(turn), limits=answer.limits, vectors=_vectors(content, len(texts)))


def _vectors(content: JsonObject, count: int) -> "NDArray[np.float32]":
    """The vectors in the order of the texts, scaled to length 1."""
    rows: Any = content.get("data")
    if not isinstance(rows, list):
        raise _unusable(f"has no data in it: {str(content)[:200]}")
    try:
        by_index = {row["index"]: row["embedding"] for row in rows}
        vectors = np.array([by_index[index] for index in range(count)], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(f"has not one vector of one size for each of {count} texts: {error!r}") from error
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if vectors.ndim != 2 or not np.all(np.isfinite(lengths) & (lengths > 0)):
        raise _unusable("has a vector that points nowhere")
    return (vectors / lengths).astype(np.float32)


def _unusable(reason: str) -> RequestFailed:
    return RequestFailed(Failure(FailureKind.TRANSIENT, f"the answer {reason}", 200))
