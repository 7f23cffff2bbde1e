"""`ModelServer`: a client of a model server for code that blocks, such as a training.

Requests run on an event loop in a thread of the server's own.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

from stillhouse.errors import AuthenticationError
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.retry import Effects, RetryPolicy, with_retries
from stillhouse.inference.transport import HttpAnswer
from stillhouse.keys import unset
from stillhouse.processes.loop_thread import LoopThread

ResultT = TypeVar("ResultT")

_SHOWN_CHARACTERS: Final = 200
_MAX_ANSWER_BYTES: Final = 1 << 30
"""Longest answer: of 128,000 scored tokens with 100 alternatives each, some 80 bytes apiece."""

logger = logging.getLogger(__name__)


class ListedModel(NamedTuple):
    id: str
    max_context: int | None
    """Most tokens of a request; None where the server does not say."""
    is_adapter: bool
    """By vLLM's convention: the entry has a parent."""


class ModelServer:
    """A server's root and a pool of connections to it. Safe to use from several threads.

    `base_url` may end with `/v1`. Rate limits are kept under `model`, the model that is asked; it is empty for several.
    `timeout_setting` is the config field that sets `timeout_s`; None if there is none.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None,
        timeout_s: float,
        *,
        model: str = "",
        max_bytes: int = _MAX_ANSWER_BYTES,
        timeout_setting: str | None = None,
        effects: Effects = Effects(),  # noqa: B008
    ) -> None:
        self.root = base_url.rstrip("/").removesuffix("/v1")
        self.endpoint = Endpoint(self.root, model, model, key or "")
        self._effects = effects
        self._thread = LoopThread("model-server")
        self._stopped = asyncio.Event()

        async def connect() -> HttpClient:
            return HttpClient(self.endpoint, timeout_s=timeout_s, max_bytes=max_bytes, timeout_setting=timeout_setting)

        self._client = self.start(connect()).result()

    def start(self, work: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        return self._thread.submit(work)

    async def send(self, path: str, body: object) -> HttpAnswer:
        """Return one attempt's answer, on the server's event loop; raise RequestFailed if there is none."""
        return await self._client.post(path.removeprefix("/"), body)

    def post(
        self,
        path: str,
        body: object,
        policy: RetryPolicy | None = None,
        is_final: Callable[[Failure], bool] = lambda failure: False,
    ) -> Any:
        """Return the answer of `path` with HTTP 200: the parsed JSON, in which NaN is a number, or else a text.

        `path` starts at the server's root; a `policy` of None sends the request once. Failures of which `is_final` is
        true are not tried again. Raise RequestFailed if there is no such answer.
        """
        return self._ask(lambda: self.send(path, body), path, policy, is_final)

    def get(
        self, path: str, policy: RetryPolicy | None = None, is_final: Callable[[Failure], bool] = lambda failure: False
    ) -> Any:
        """Return the answer of `path`; arguments and errors as of `post`."""
        return self._ask(lambda: self._client.get(path.removeprefix("/")), path, policy, is_final)

    def models(self, policy: RetryPolicy | None = None) -> list[ListedModel]:
        """Return what `/v1/models` lists, at least one; raise RequestFailed where it lists none."""
        answer = self.get("/v1/models", policy)
        entries = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(entries, list) or not entries or not all(isinstance(e, dict) and "id" in e for e in entries):
            message = f"no list of models: {str(answer)[:_SHOWN_CHARACTERS]!r}"
            raise RequestFailed(Failure(FailureKind.PERMANENT, message, 200))
        lengths = [entry.get("max_model_len") for entry in entries]
        return [
            ListedModel(entry["id"], length if type(length) is int and length > 0 else None, bool(entry.get("parent")))
            for entry, length in zip(entries, lengths, strict=True)
        ]

    def stop_retries(self) -> None:
        """Send nothing a second time from now on, and give up what waits to be."""

        async def stop() -> None:
            self._stopped.set()

        if self._thread.is_running:
            self.start(stop())

    def close(self) -> None:
        if self._thread.is_running:
            self.start(self._client.aclose()).result()
            self._thread.close()

    def _ask(
        self,
        attempt: Callable[[], Coroutine[Any, Any, HttpAnswer]],
        path: str,
        policy: RetryPolicy | None,
        is_final: Callable[[Failure], bool] = lambda failure: False,
    ) -> Any:
        if policy is None:
            return self.start(attempt()).result().body()

        def log(failure: Failure, wait_s: float) -> None:
            if failure.kind is not FailureKind.RATE:
                logger.warning("%s%s: %s; trying again in %.1f s", self.root, path, failure.message, wait_s)

        retried = with_retries(
            attempt,
            policy,
            Effects(self._effects.clock, self._sleep, self._effects.rng),
            is_final=lambda failure: self._stopped.is_set() or is_final(failure),
            on_retry=log,
        )
        return self.start(retried).result().body()

    async def _sleep(self, seconds: float) -> None:
        waits = asyncio.ensure_future(self._effects.sleep(seconds)), asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def read_key(variable: str | None, setting: str) -> str | None:
    """Return the variable's key, None where no variable is named; raise AuthenticationError if it is not set."""
    key = None if variable is None else os.environ.get(variable)
    if variable is not None and not key:
        raise AuthenticationError(f"{setting}: {unset(variable)}, or leave the setting out")
    return key
