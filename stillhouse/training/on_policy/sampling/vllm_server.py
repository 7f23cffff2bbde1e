"""Requests to a vLLM server that samples: retries of passing faults, and errors that name the remedy."""

import logging
import random
import threading
from collections.abc import Callable
from typing import Any, Final

from stillhouse.errors import AuthenticationError, EndpointError
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.training.on_policy.http import ListedModel, ModelServer, read_key
from stillhouse.training.on_policy.patience import Patience

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 1800.0
"""Longest wait for one answer: a long completion in a full server is slow, and nobody else waits for it."""
_MAX_ATTEMPTS: Final = 8
_PASSING: Final = frozenset({FailureKind.RATE, FailureKind.TRANSIENT, FailureKind.STALL})
_REMEDIES: Final = {
    "/v1/models": "Check on_policy.engine_url: it is the address of a vLLM server, such as http://127.0.0.1:8000/v1",
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
        sleep: waits so many seconds; None waits for real, until `stop`.
        rng: draws the jitter of waits.

    Raises:
        AuthenticationError: the variable is not set.
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        *,
        sleep: Callable[[float], object] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._server = ModelServer(base_url, read_key(api_key_env, "on_policy.engine_api_key_env"), _TIMEOUT_S)
        self.root = self._server.root
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        self._rng = rng or random.Random()

    def post(self, path: str, body: object) -> Any:
        """What `path` answered with HTTP 200: the parsed JSON, or the text that is none.

        Raises:
            EndpointError: it did not, also after a while.
        """
        return self._ask(path, lambda: self._server.post(path, body))

    def models(self) -> list[ListedModel]:
        """What it serves, at least one: base models and adapters.

        Raises:
            EndpointError: it does not say.
        """
        found: list[ListedModel] = self._ask("/v1/models", self._server.models)
        return found

    def stop(self) -> None:
        """From now on nothing is tried a second time, and what waits to be gives up."""
        self._stopped.set()

    def close(self) -> None:
        """Closes the connections."""
        self.stop()
        self._server.close()

    def _ask(self, path: str, attempt: Callable[[], Any]) -> Any:
        patience = Patience(_MAX_ATTEMPTS, self._rng)
        while True:
            try:
                return attempt()
            except RequestFailed as error:
                failure = error.failure
            wait_s = patience.wait_s(failure)
            if failure.kind not in _PASSING or wait_s is None or self._stopped.is_set():
                raise self._error(path, failure)
            if failure.kind is not FailureKind.RATE:
                logger.warning("%s%s: %s; trying again in %.1f s", self.root, path, failure.message, wait_s)
            self._sleep(wait_s)

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
