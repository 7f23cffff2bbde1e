"""Requests to a vLLM server that samples: retries of passing faults, and errors that name the remedy."""

import logging
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from stillhouse.errors import AuthenticationError, EndpointError
from stillhouse.rollouts.failures import Failure, FailureKind, classify
from stillhouse.rollouts.retry import backoff_s

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 1800.0
"""Longest wait for one answer: a long completion in a full server is slow, and nobody else waits for it."""
_CONNECT_TIMEOUT_S: Final = 30.0
_MAX_ATTEMPTS: Final = 8
_MAX_REFUSED_S: Final = 1800.0
"""Longest that a request waits in all because the server has too much to do."""
_PASSING: Final = frozenset({FailureKind.RATE, FailureKind.TRANSIENT, FailureKind.STALL})
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_REMEDIES: Final = {
    "/v1/completions": "Check that the server has the model, and room for the longest sequence in --max-model-len",
    "/v1/load_lora_adapter": (
        "Start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment and with --enable-lora, --max-loras 2 "
        "and a --max-lora-rank no less than student.lora_rank, where it sees the folder under the same path"
    ),
    "/collective_rpc": (
        "Start it with VLLM_SERVER_DEV_MODE=1 in its environment, in a version whose reload_weights takes a "
        "weights_path, where it sees the folder under the same path; or train an adapter (student.parameters: lora)"
    ),
}


class VllmServer:
    """One server. Safe to use from several threads.

    Args:
        base_url: its address with `/v1`.
        api_key_env: the environment variable that holds its key; None sends none.
        sleep: waits so many seconds.
        rng: draws the jitter of waits.

    Raises:
        AuthenticationError: the variable is not set.
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        key = None if api_key_env is None else os.environ.get(api_key_env)
        if api_key_env is not None and not key:
            raise AuthenticationError(
                f"on_policy.engine_url {base_url}: the environment variable {api_key_env} is not set. Put "
                f"{api_key_env}=... into .env or the environment, or leave out on_policy.engine_api_key_env"
            )
        self.root = base_url.rstrip("/").removesuffix("/v1")
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._client = httpx.Client(
            timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=None),
            # A proxy of the environment is never meant for this machine itself.
            trust_env=urlsplit(base_url).hostname not in _LOOPBACK,
        )

    def get(self, path: str) -> Any:
        """As `post`, without a body."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        """What `path` answered with HTTP 200: the parsed JSON, or the text that is none.

        Raises:
            EndpointError: it did not, also after a while.
        """
        return self._ask("POST", path, body)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _ask(self, method: str, path: str, body: object) -> Any:
        num_failed, refused_s = 0, 0.0
        while True:
            answer = self._try(method, path, body)
            if not isinstance(answer, Failure):
                return answer
            is_refused = answer.kind is FailureKind.RATE
            num_failed += not is_refused
            if answer.kind not in _PASSING or num_failed == _MAX_ATTEMPTS or refused_s > _MAX_REFUSED_S:
                raise self._error(path, answer)
            wait_s = backoff_s(max(1, num_failed), answer.retry_after_s, self._rng)
            refused_s += wait_s * is_refused
            if not is_refused:
                logger.warning("%s%s: %s; trying again in %.1f s", self.root, path, answer.message, wait_s)
            self._sleep(wait_s)

    def _try(self, method: str, path: str, body: object) -> Any:
        """The answer, or what kind of failure there was instead."""
        try:
            answer = self._client.request(method, f"{self.root}{path}", json=body)
        except httpx.TimeoutException as error:
            return Failure(FailureKind.STALL, f"no answer in time ({type(error).__name__})")
        except httpx.HTTPError as error:
            unreachable = isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol)
            return Failure(FailureKind.TRANSIENT, f"{type(error).__name__}: {error}", unreachable=unreachable)
        try:
            content = answer.json()
        except ValueError:
            content = answer.text
        if answer.status_code == 200:
            return content
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return classify(answer.status_code, headers, content, datetime.now(UTC))

    def _error(self, path: str, failure: Failure) -> EndpointError:
        where = f"the vLLM server at {self.root}{path}"
        if failure.unreachable:
            return EndpointError(
                f"{where} cannot be reached: {failure.message}. Start it with the student's base model, mend "
                "on_policy.engine_url, or set on_policy.engine to `transformers`"
            )
        if failure.kind is FailureKind.AUTH:
            return AuthenticationError(
                f"{where} wants another key: {failure.message}. Name the variable that holds it in "
                "on_policy.engine_api_key_env"
            )
        return EndpointError(f"{where} does not do what is asked: {failure.message}. {_REMEDIES.get(path, '')}")
