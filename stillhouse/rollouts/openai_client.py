"""The HTTP path through the `openai` package, with its own retries off."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import openai

from stillhouse.rollouts.completion import Completion, Sampling, read_completion
from stillhouse.rollouts.endpoint import Endpoint
from stillhouse.rollouts.failures import Failure, FailureKind, RequestFailed, classify
from stillhouse.types import Message, ToolSchema

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_CONNECT_TIMEOUT_S: Final = 30.0


class OpenAIClient:
    """A `ChatClient` over the `openai` package.

    Args:
        endpoint: who is asked.
        timeout_s: longest wait for one answer in seconds.
        max_connections: connections open at once at most.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        max_connections: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        host = urlsplit(endpoint.base_url).hostname or ""
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._clock = clock
        # Newer models of OpenAI refuse `max_tokens`; most other endpoints know nothing else.
        self._max_tokens_key = "max_completion_tokens" if host.endswith("openai.com") else "max_tokens"
        # The package's own classes for limits and timeouts, whichever HTTP library it stands on.
        limits = type(openai.DEFAULT_CONNECTION_LIMITS)(
            max_connections=max_connections, max_keepalive_connections=max_connections
        )
        self._client = openai.AsyncOpenAI(
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            max_retries=0,
            timeout=openai.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
            # A proxy of the environment is never meant for this machine itself.
            http_client=openai.DefaultAsyncHttpxClient(trust_env=host not in _LOOPBACK, limits=limits),
        )

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        """See `ChatClient`."""
        body = self._body(messages, tools, sampling)
        started = self._clock()
        try:
            # The HTTP library's own limit starts again with every byte.
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.chat.completions.with_raw_response.create(**body)
        except openai.APIStatusError as error:
            headers = _lower(error.response.headers)
            raise RequestFailed(
                classify(error.status_code, headers, _parsed(error.response.content), datetime.now(UTC))
            ) from error
        except (openai.APIConnectionError, TimeoutError) as error:
            raise RequestFailed(self._no_answer(error)) from error
        return self._priced(
            read_completion(
                answer.content,
                _lower(answer.headers),
                latency_s=self._clock() - started,
                model=self._endpoint.model,
                record_tokens=sampling.record_tokens,
            )
        )

    async def aclose(self) -> None:
        """See `ChatClient`."""
        await self._client.close()

    def _priced(self, completion: Completion) -> Completion:
        """The completion with its cost by the configured price, where the endpoint did not say what it cost."""
        turn, price = completion.turn, self._endpoint.price
        if turn.cost_usd is not None or price is None:
            return completion
        return replace(completion, turn=replace(turn, cost_usd=price.of(turn.usage)))

    def _no_answer(self, error: openai.APIConnectionError | TimeoutError) -> Failure:
        """Tells an endpoint that is not there from one that is slow and from a connection that was lost."""
        cause = error.__cause__
        unreachable = type(cause).__name__ in ("ConnectError", "ConnectTimeout")
        if isinstance(error, openai.APITimeoutError | TimeoutError) and not unreachable:
            return Failure(FailureKind.STALL, f"no answer within {self._timeout_s:g} s (runtime.request_timeout_s)")
        told = f"{error} {cause}" if cause is not None else str(error)
        return Failure(FailureKind.TRANSIENT, told, unreachable=unreachable)

    def _body(self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": list(messages),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._max_tokens_key: sampling.max_tokens,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if tools:
            body["tools"] = list(tools)
        if sampling.record_tokens:
            body["logprobs"] = True
            body["extra_body"] = {"return_token_ids": True}
        return body


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")
