"""Embeddings of prompts: each text is paid for once, whatever is killed and whoever else asks at the same time.

Requests go through the rollout engine's limits, retries and budget. A vector is written to the store's journal before
it is used, under a digest of endpoint, model and text.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stillhouse.chat.content import text_of
from stillhouse.config import RuntimeConfig
from stillhouse.dataset.totals import prompt_part
from stillhouse.errors import EndpointError
from stillhouse.inference import Controller, Endpoint, Journal, RolloutStats
from stillhouse.inference.budget import Budget
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.hedge import Hedging
from stillhouse.inference.rate_limit import RateLimits, RequestSize
from stillhouse.inference.requester import Requester
from stillhouse.inference.retry import Effects
from stillhouse.inference.usage import read_cost, read_usage
from stillhouse.store import digest
from stillhouse.types import JsonObject, Trajectory, Turn

if TYPE_CHECKING:
    from stillhouse.inference.http_client import HttpClient


MAX_CHARACTERS: Final = 8_000
"""Longer texts are cut: OpenAI's models take 8,191 tokens, and a character is rarely more than one
(https://platform.openai.com/docs/guides/embeddings)."""
_FEWEST_CHARACTERS: Final = 250
"""A text of this length cannot be too long; the error has another cause."""
_BATCH_CHARACTERS: Final = 250_000
"""Limit of one request: OpenAI takes 300,000 tokens (https://platform.openai.com/docs/api-reference/embeddings)."""
_MAX_CONCURRENT: Final = 32
"""Maximum concurrent requests; each response takes megabytes."""
_POLL_S: Final = 0.5
"""Seconds between checks for vectors that another process is requesting."""

Vector = NDArray[np.float32]
"""A unit vector."""


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """The answer to one request."""

    turn: Turn
    """Usage and cost."""
    limits: RateLimits | None
    vectors: NDArray[np.float32]
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


def _vectors(content: JsonObject, count: int) -> NDArray[np.float32]:
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


class Embedder:
    """Embeds texts at one endpoint.

    Args:
        endpoint: the embeddings endpoint.
        batch_size: maximum texts per request.
        journal: holds vectors that are paid for.
        runtime: limits of attempts and waiting.
        controller: rate limits of the endpoint.
        budget: of the run; vectors of earlier attempts do not count against it.
        effects: clock, sleep and jitter.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        batch_size: int,
        *,
        journal: Journal,
        runtime: RuntimeConfig,
        controller: Controller,
        budget: Budget,
        effects: Effects = Effects(),  # noqa: B008
    ) -> None:
        self.stats = RolloutStats()
        self._endpoint, self._batch_size, self._timeout_s = endpoint, batch_size, runtime.request_timeout_s
        self._journal, self._budget = journal, budget
        self._requester = Requester(
            endpoint,
            controller,
            budget,
            max_attempts=runtime.max_attempts,
            max_outage_s=runtime.max_outage_s,
            hedging=Hedging(enabled=runtime.hedge),
            stats=self.stats,
            effects=effects,
        )

    async def embed(self, texts: Sequence[str]) -> dict[str, Vector]:
        """The vector of each distinct text.

        Raises:
            EndpointError: a request failed for good; received vectors are kept.
            BudgetReached: a request could exceed the budget; received vectors are kept.
            StoreError: the journal cannot be read or written.
        """
        # aiohttp takes a third of a second to import.
        from stillhouse.inference.http_client import HttpClient

        vectors: dict[str, Vector] = {}
        missing = list(dict.fromkeys(texts))
        self._read_journal(missing, vectors)
        self.stats.num_replayed += len(vectors)
        if len(vectors) == len(missing):
            return vectors
        async with aclosing(HttpClient(self._endpoint, timeout_s=self._timeout_s)) as client:
            with self._budget.running():
                while missing := [text for text in missing if text not in vectors]:
                    await self._embed_all(client, missing, vectors)
                    if any(text not in vectors for text in missing):
                        await asyncio.sleep(_POLL_S)
        return vectors

    async def _embed_all(self, client: "HttpClient", texts: Sequence[str], vectors: dict[str, Vector]) -> None:
        """Adds the vectors that no other process is requesting.

        After a failure no further batch starts; requests in flight complete, since they are paid for.
        """
        slots = asyncio.Semaphore(_MAX_CONCURRENT)
        errors: list[Exception] = []

        async def embed(batch: Sequence[str]) -> None:
            async with slots:
                if errors:
                    return
                try:
                    await self._embed_claimed(client, batch, vectors)
                except Exception as error:
                    errors.append(error)

        await asyncio.gather(*map(embed, self._batches(texts)))
        if errors:
            raise errors[0]

    async def _embed_claimed(self, client: "HttpClient", batch: Sequence[str], vectors: dict[str, Vector]) -> None:
        claimed: list[str] = []
        try:
            for text in batch:
                if await self._journal.claim(self._key(text)):
                    claimed.append(text)
            # The previous claimant may have paid.
            self._read_journal(claimed, vectors)
            if missing := [text for text in claimed if text not in vectors]:
                await self._request(client, missing, vectors)
        finally:
            for text in claimed:
                self._journal.disclaim(self._key(text))

    async def _request(
        self,
        client: "HttpClient",
        texts: Sequence[str],
        vectors: dict[str, Vector],
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        """Adds the vectors of `texts`, each cut to `max_characters`.

        A text that is too long for the model is halved repeatedly. Texts are separated first, so that a vector does not
        depend on the rest of its request.
        """
        sent = [text[:max_characters] for text in texts]
        send = partial(embed_batch, client, self._endpoint, sent)
        size = RequestSize(prompt_characters=sum(map(len, sent)), max_tokens=0)
        try:
            embedded = await self._requester.ask(send, size=size, continuing=False, asleep=nullcontext)
        except RequestFailed as failed:
            is_single, half = len(texts) == 1, len(texts) // 2
            if not failed.failure.context_overflow or (is_single and len(sent[0]) <= _FEWEST_CHARACTERS):
                raise EndpointError(
                    f"{self._endpoint.base_url}: {len(texts)} texts could not be embedded by model "
                    f"{self._endpoint.model!r}, the first of them {texts[0][:80]!r}: {failed.failure.message}. Check "
                    "dataset.embeddings, then run the same command again: vectors that had come in are used again"
                ) from failed
            if is_single:
                await self._request(client, texts, vectors, len(sent[0]) // 2)
            else:
                await self._request(client, texts[:half], vectors, max_characters)
                await self._request(client, texts[half:], vectors, max_characters)
            return
        assert isinstance(embedded, Embedded)
        # Stored before they are used, so that no vector is paid for twice.
        keyed = (
            (self._key(text), vector.astype("<f4").tobytes())
            for text, vector in zip(texts, embedded.vectors, strict=True)
        )
        await asyncio.gather(*(self._journal.put_completion(key, 0, key, vector) for key, vector in keyed))
        vectors.update(zip(texts, embedded.vectors, strict=True))

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        num_characters = 0
        for text in texts:
            length = min(len(text), MAX_CHARACTERS)
            if batch and (len(batch) == self._batch_size or num_characters + length > _BATCH_CHARACTERS):
                yield batch
                batch, num_characters = [], 0
            batch.append(text)
            num_characters += length
        if batch:
            yield batch

    def _key(self, text: str) -> str:
        return digest(["embedding", self._endpoint.identity, text])

    def _read_journal(self, texts: Sequence[str], vectors: dict[str, Vector]) -> None:
        for text in texts:
            key = self._key(text)
            if (body := self._journal.completion(key, 0, key)) is not None:
                vectors[text] = np.frombuffer(body, dtype="<f4")


def prompt_text(trajectory: Trajectory) -> str | None:
    """User messages before the first sampled message; None if they have no text.

    A system prompt that all rows share would make them similar, so it is left out.
    """
    texts = [text_of(message) for message in prompt_part(trajectory) if message["role"] == "user"]
    return "\n".join(filter(None, texts)) if any(text.strip() for text in texts) else None


def write_embeddings(path: Path, texts: Sequence[str | None], vectors: Mapping[str, "Vector"]) -> int:
    """Writes the column `embedding`, one vector for each of a shard's `texts`, null for None; the number of rows.

    The type is a list of any size: Parquet files with nulls in Arrow's fixed-size lists cannot be read back (pyarrow
    25: "Expected all lists to be of size").

    Raises:
        EndpointError: the vectors differ in size.
    """
    sizes = sorted({len(vector) for vector in vectors.values()})
    if len(sizes) > 1:
        raise EndpointError(
            f"the embeddings have {' and '.join(map(str, sizes))} dimensions, expected one number: the model behind "
            "the endpoint has changed. Give dataset.embeddings.model the name of one model"
        )
    rows = [None if text is None else vectors[text] for text in texts]
    column = pa.array(rows, type=pa.list_(pa.float32()))
    pq.write_table(pa.table({"embedding": column}), path, compression="zstd")
    return len(rows)
