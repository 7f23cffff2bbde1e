"""One POST to a teacher's server, and what is known of the server."""

import json
import logging
import os
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import httpx

from stillhouse.errors import AuthenticationError, EndpointError
from stillhouse.rollouts.failures import Failure, FailureKind, RequestFailed, classify

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_CONNECT_TIMEOUT_S: Final = 30.0
_VERSIONED: Final = "/v1"
_SHOWN_CHARACTERS: Final = 200


class ServerClient:
    """A server's root and a pool of connections to it. Safe to use from several threads.

    Args:
        base_url: its address, with `/v1` or without.
        api_key_env: the environment variable that holds its key; None sends none.
        timeout_s: longest wait for one answer.

    Raises:
        AuthenticationError: the variable is not set.
    """

    def __init__(self, base_url: str, api_key_env: str | None, timeout_s: float) -> None:
        self.root = base_url.rstrip("/").removesuffix(_VERSIONED)
        key = None if api_key_env is None else os.environ.get(api_key_env)
        if api_key_env is not None and not key:
            raise AuthenticationError(
                f"{base_url}: no API key: the environment variable {api_key_env} is not set. Put {api_key_env}=... "
                "into .env or the environment, or leave out the teacher's api_key_env"
            )
        # It tells of every request, which would bury the log of the training.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._timeout_s = timeout_s
        self._client = httpx.Client(
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=None),
            # A proxy of the environment is never meant for this machine itself.
            trust_env=urlsplit(base_url).hostname not in _LOOPBACK,
        )

    def post(self, path: str, body: object) -> object:
        """What `path` answered with HTTP 200, parsed; NaN and infinities are numbers.

        Raises:
            RequestFailed: it did not.
        """
        try:
            answer = self._client.post(f"{self.root}{path}", json=body)
        except httpx.TimeoutException as error:
            unreachable = isinstance(error, httpx.ConnectTimeout)
            told = f"no answer within {self._timeout_s:g} s (request_timeout_s of the teacher)"
            raise RequestFailed(Failure(FailureKind.STALL, told, unreachable=unreachable)) from error
        except httpx.HTTPError as error:
            told = f"{type(error).__name__}: {error}"
            unreachable = isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol)
            raise RequestFailed(Failure(FailureKind.TRANSIENT, told, unreachable=unreachable)) from error
        try:
            content = json.loads(answer.content)
        except ValueError:
            content = answer.text
            if answer.status_code == 200:
                told = f"HTTP 200, but its body is no JSON: {content[:_SHOWN_CHARACTERS] or 'nothing'}"
                raise RequestFailed(Failure(FailureKind.TRANSIENT, told, 200)) from None
        if answer.status_code != 200:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            raise RequestFailed(classify(answer.status_code, headers, content, datetime.now(UTC)))
        return content

    def context_length(self, model: str) -> int | None:
        """Most tokens of a request by `/v1/models`; None where the server does not say.

        Raises:
            EndpointError: nobody answers there, or no server of models, or it has no model of this name.
        """
        url = f"{self.root}/v1/models"
        try:
            answer = self._client.get(url)
        except httpx.HTTPError as error:
            raise EndpointError(
                f"{url}: {type(error).__name__}: {error}. Check that the teacher's server runs, and its base_url"
            ) from error
        if answer.status_code in (401, 403):
            raise AuthenticationError(f"{url}: HTTP {answer.status_code}: the key is refused; see api_key_env")
        if answer.status_code != 200:
            return None
        try:
            served = {entry["id"]: entry.get("max_model_len") for entry in answer.json()["data"]}
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise EndpointError(
                f"{url}: no list of models: {answer.text[:_SHOWN_CHARACTERS]!r}. Check base_url: it is the address of "
                "a server with OpenAI's API, such as http://127.0.0.1:8000/v1"
            ) from error
        if model not in served:
            raise EndpointError(
                f"{url}: does not serve {model!r}; expected one of {sorted(served)} as the teacher's `model`"
            )
        length = served[model]
        return length if type(length) is int and length > 0 else None

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()
