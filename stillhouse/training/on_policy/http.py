"""One request to a server of models, as teachers and samplers send it; what is tried again is theirs to decide."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx

from stillhouse.errors import AuthenticationError
from stillhouse.http.bodies import ACCEPT_ENCODING, BodyRefused, Decoder, read_within
from stillhouse.http.keys import KeyRedactor
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed, classify

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_CONNECT_TIMEOUT_S: Final = 30.0
_SHOWN_CHARACTERS: Final = 200
_MAX_ANSWER_BYTES: Final = 1 << 30
"""Longest answer: of 128,000 scored tokens with 100 alternatives each, some 80 bytes apiece."""


class ListedModel(NamedTuple):
    """A model that a server offers."""

    id: str
    max_context: int | None
    """Most tokens of a request; None where the server does not say."""
    is_adapter: bool
    """As vLLM says it: the entry has a parent."""


class ModelServer:
    """A server's root and a pool of connections to it. Safe to use from several threads.

    Args:
        base_url: its address, with `/v1` or without.
        key: sent with every request; None sends none.
        timeout_s: longest wait for one answer.
        max_bytes: longest answer; what is longer is not read.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None,
        timeout_s: float,
        max_bytes: int = _MAX_ANSWER_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = base_url.rstrip("/").removesuffix("/v1")
        # They tell of every request, which would bury the log of the training, and of headers as they came.
        for logger in ("httpx", "httpcore"):
            logging.getLogger(logger).setLevel(logging.WARNING)
        self._redactor = KeyRedactor(key)
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._client = httpx.Client(
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
            headers={
                "accept-encoding": ACCEPT_ENCODING,
                **({} if key is None else {"authorization": f"Bearer {key}"}),
            },
            limits=httpx.Limits(max_connections=None),
            # A proxy of the environment is never meant for this machine itself.
            trust_env=urlsplit(base_url).hostname not in _LOOPBACK,
        )

    def get(self, path: str) -> Any:
        """As `post`, without a body."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        """What `path` answered with HTTP 200: the parsed JSON, in which NaN and infinities are numbers, or else a text.

        Raises:
            RequestFailed: it did not.
        """
        return self._ask("POST", path, body)

    def models(self) -> list[ListedModel]:
        """What `/v1/models` lists, at least one.

        Raises:
            RequestFailed: it does not; with status 200 where it says something else.
        """
        answer = self.get("/v1/models")
        found = answer.get("data") if isinstance(answer, dict) else None
        if not found or not isinstance(found, list) or not all(isinstance(one, dict) and "id" in one for one in found):
            told = f"no list of models: {str(answer)[:_SHOWN_CHARACTERS]!r}"
            raise RequestFailed(Failure(FailureKind.PERMANENT, told, 200))
        lengths = [one.get("max_model_len") for one in found]
        return [
            ListedModel(one["id"], length if type(length) is int and length > 0 else None, bool(one.get("parent")))
            for one, length in zip(found, lengths, strict=True)
        ]

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _ask(self, method: str, path: str, body: object) -> Any:
        try:
            with self._client.stream(method, f"{self.root}{path}", json=body) as answer:
                status = answer.status_code
                headers = self._redactor.headers({name.lower(): value for name, value in answer.headers.items()})
                said = self._redactor.body(read_within(self._pieces(answer, headers), self._max_bytes))
        except BodyRefused as error:
            raise RequestFailed(Failure(FailureKind.PERMANENT, f"the answer {error}", status)) from error
        except (httpx.TimeoutException, _TooLate) as error:
            unreachable = isinstance(error, httpx.ConnectTimeout)
            told = f"no answer within {self._timeout_s:g} s ({type(error).__name__.strip('_')})"
            raise RequestFailed(Failure(FailureKind.STALL, told, unreachable=unreachable)) from error
        except httpx.HTTPError as error:
            unreachable = isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol)
            told = self._redactor.text(f"{type(error).__name__}: {error}")
            # Without its cause, which may hold the key as it came.
            raise RequestFailed(Failure(FailureKind.TRANSIENT, told, unreachable=unreachable)) from None
        text = said.decode(errors="replace")
        try:
            content = json.loads(text)
        except ValueError:
            content = text
        if status != 200:
            raise RequestFailed(classify(status, headers, content, datetime.now(UTC)))
        return content

    def _pieces(self, answer: httpx.Response, headers: Mapping[str, str]) -> Iterator[bytes]:
        decoder = Decoder(headers)
        # httpx limits the wait for each chunk, and there may be many.
        deadline = self._clock() + self._timeout_s
        for chunk in answer.iter_raw():
            if self._clock() > deadline:
                raise _TooLate
            yield from decoder.pieces(chunk)


class _TooLate(Exception):
    pass


def read_key(variable: str | None, setting: str) -> str | None:
    """The key that an environment variable holds; None where there is no variable.

    Args:
        variable: its name.
        setting: where the name was given.

    Raises:
        AuthenticationError: the variable is not set.
    """
    key = None if variable is None else os.environ.get(variable)
    if variable is not None and not key:
        raise AuthenticationError(
            f"{setting}: the environment variable {variable} is not set. Put {variable}=... into .env or the "
            "environment, or leave the setting out"
        )
    return key
