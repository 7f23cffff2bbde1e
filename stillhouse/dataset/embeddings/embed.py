"""Embeddings of prompts: each text is paid for once, whatever is killed and whoever else asks at the same time.

Requests go through the rollout engine's limits, retries and budget. A vector is written to the store's journal before
it is used, under a digest of endpoint, model and text.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stillhouse.chat.content import text_of
from stillhouse.config import RuntimeConfig
from stillhouse.dataset.embeddings.client import Embedded, embed_batch
from stillhouse.dataset.totals import sampled_part
from stillhouse.errors import EndpointError
from stillhouse.inference import Controller, Endpoint, Journal, RolloutStats
from stillhouse.inference.budget import Budget
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.hedge import Hedging
from stillhouse.inference.rate_limit import RequestSize
from stillhouse.inference.retry import Effects, Requester
from stillhouse.store import digest
from stillhouse.types import Trajectory

if TYPE_CHECKING:
    from stillhouse.inference.http_client import HttpClient


MAX_CHARACTERS: Final = 8_000
"""Longer texts are cut: OpenAI's models take 8,191 tokens, and a character is seldom more than one
(https://platform.openai.com/docs/guides/embeddings)."""
_FEWEST_CHARACTERS: Final = 250
"""A text that is still too long when cut to so few has something else wrong with it."""
_BATCH_CHARACTERS: Final = 250_000
"""Most of one request: OpenAI takes 300,000 tokens (https://platform.openai.com/docs/api-reference/embeddings)."""
_BATCHES_AT_ONCE: Final = 32
"""Requests under way at most, each of `batch_size` texts; their answers are megabytes."""
_ELSEWHERE_S: Final = 0.5

Vector = NDArray[np.float32]
"""Of length 1 (Euclidean)."""


class Embedder:
    """Embeds texts at one endpoint.

    Args:
        endpoint: who is asked.
        batch_size: most texts of one request.
        journal: what was paid for before, and where vectors become durable.
        runtime: bounds of attempts and waiting.
        controller: the limits of the endpoint.
        budget: what the run may spend; vectors of earlier attempts do not count against it.
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
        self._endpoint = endpoint
        self._batch_size = batch_size
        self._journal = journal
        self._budget = budget
        self._timeout_s = runtime.request_timeout_s
        self._requester = Requester(
            endpoint,
            controller,
            budget,
            max_attempts=runtime.max_attempts,
            hedging=Hedging(enabled=runtime.hedge),
            stats=self.stats,
            effects=effects,
        )

    async def embed(self, texts: Sequence[str]) -> dict[str, Vector]:
        """The vector of each distinct text.

        Raises:
            EndpointError: a request failed for good; what came in is kept.
            BudgetReached: the run may not spend what a request could cost; likewise.
            StoreError: the journal cannot be read or written.
        """
        # aiohttp takes a third of a second to import, which no command that embeds nothing should wait for.
        from stillhouse.inference.http_client import HttpClient

        known: dict[str, Vector] = {}
        owed = list(dict.fromkeys(texts))
        self._take_kept(owed, known)
        self.stats.num_replayed += len(known)
        if len(known) == len(owed):
            return known
        async with aclosing(HttpClient(self._endpoint, timeout_s=self._timeout_s)) as client:
            with self._budget.running():
                while owed := [text for text in owed if text not in known]:
                    await self._embed_all(client, owed, known)
                    if any(text not in known for text in owed):
                        await asyncio.sleep(_ELSEWHERE_S)
        return known

    async def _embed_all(self, client: "HttpClient", texts: Sequence[str], known: dict[str, Vector]) -> None:
        """Adds to `known` what nobody else is asking for.

        Once a batch has failed no other begins, and those under way end by themselves: they are paid for.
        """
        places = asyncio.Semaphore(_BATCHES_AT_ONCE)
        errors: list[Exception] = []

        async def one(batch: Sequence[str]) -> None:
            async with places:
                if errors:
                    return
                try:
                    await self._embed_claimed(client, batch, known)
                except Exception as error:
                    errors.append(error)

        await asyncio.gather(*map(one, self._batches(texts)))
        if errors:
            raise errors[0]

    async def _embed_claimed(self, client: "HttpClient", batch: Sequence[str], known: dict[str, Vector]) -> None:
        mine: list[str] = []
        try:
            for text in batch:
                if await self._journal.claim(self._key(text)):
                    mine.append(text)
            # Whoever had the claim before may have paid.
            self._take_kept(mine, known)
            if missing := [text for text in mine if text not in known]:
                await self._pay_for(client, missing, known)
        finally:
            for text in mine:
                self._journal.disclaim(self._key(text))

    async def _pay_for(
        self, client: "HttpClient", texts: Sequence[str], known: dict[str, Vector], most: int = MAX_CHARACTERS
    ) -> None:
        """Adds to `known` the vectors of `texts`, of which `most` characters each are sent.

        What is too long for the model is cut to half, again and again, each text by itself: what else is in a request
        makes no difference to a vector.
        """
        sent = [text[:most] for text in texts]
        send = partial(embed_batch, client, self._endpoint, sent)
        size = RequestSize(prompt_characters=sum(map(len, sent)), max_tokens=0)
        try:
            answer = await self._requester.ask(send, size=size, continuing=False, asleep=nullcontext)
        except RequestFailed as failed:
            is_single, half = len(texts) == 1, len(texts) // 2
            if not failed.failure.context_overflow or (is_single and len(sent[0]) <= _FEWEST_CHARACTERS):
                raise self._explained(failed, texts) from failed
            if is_single:
                await self._pay_for(client, texts, known, len(sent[0]) // 2)
            else:
                await self._pay_for(client, texts[:half], known, most)
                await self._pay_for(client, texts[half:], known, most)
            return
        assert isinstance(answer, Embedded)
        await asyncio.gather(*map(self._keep, texts, answer.vectors))
        known.update(zip(texts, answer.vectors, strict=True))

    def _explained(self, failed: RequestFailed, texts: Sequence[str]) -> EndpointError:
        return EndpointError(
            f"{self._endpoint.base_url}: {len(texts)} texts could not be embedded by model {self._endpoint.model!r}, "
            f"the first of them {texts[0][:80]!r}: {failed.failure.message}. Check dataset.embeddings, then run the "
            "same command again: vectors that had come in are used again"
        )

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

    async def _keep(self, text: str, vector: Vector) -> None:
        key = self._key(text)
        await self._journal.put_completion(key, 0, key, vector.astype("<f4").tobytes())

    def _take_kept(self, texts: Sequence[str], known: dict[str, Vector]) -> None:
        for text in texts:
            key = self._key(text)
            if (body := self._journal.completion(key, 0, key)) is not None:
                known[text] = np.frombuffer(body, dtype="<f4")


def prompt_text(trajectory: Trajectory) -> str | None:
    """What the user said before the first sampled message; None where that is no text.

    The system prompt is left out: where all rows share it, it makes them alike.
    """
    given = trajectory.messages[: len(trajectory.messages) - len(sampled_part(trajectory))]
    text = "\n".join(filter(None, (text_of(message) for message in given if message["role"] == "user")))
    return text if text and not text.isspace() else None


def write_embeddings(path: Path, texts: Sequence[str | None], vectors: Mapping[str, "Vector"]) -> int:
    """Writes the column `embedding`, a list of float32; the number of rows.

    All lists have one size, but the type is that of lists of any size: Parquet files of the fixed-size type cannot be
    read back by Arrow once a row is null (pyarrow 25: "Expected all lists to be of size").

    Args:
        path: the file.
        texts: of each row, in the shard's order; None makes null.
        vectors: of every text.

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
