"""`VllmServer`: requests to a server that samples, with retries and errors that name the remedy."""

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

from stillhouse.errors import AuthenticationError, EndpointError
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.model_server import ListedModel, ModelServer, read_key
from stillhouse.inference.retry import Effects, RetryPolicy

_TIMEOUT_S: Final = 1800.0
"""Longest wait for one answer: a long completion on a busy server is slow, and nothing else waits for it."""
_RETRIES: Final = RetryPolicy(max_attempts=8, max_refused_s=1800.0)
_DEVELOPMENT: Final = (
    "Start it with VLLM_SERVER_DEV_MODE=1 in its environment, in version 0.32 or later, where it sees the folder under "
    "the same path; or train an adapter (student.parameters: lora)"
)
_REMEDIES: Final = {
    "/v1/models": "Check on_policy.engine_url: it is the address of a vLLM server, such as http://127.0.0.1:8000/v1",
    "/v1/completions": "Check that the server has the model, and room for the longest sequence in --max-model-len",
    "/v1/load_lora_adapter": (
        "Start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment and with --enable-lora, a --max-loras "
        "no less than on_policy.max_staleness + 2 and a --max-lora-rank no less than student.lora_rank, where it sees "
        "the folder under the same path"
    ),
    "/pause?mode=keep": _DEVELOPMENT,
    "/collective_rpc": _DEVELOPMENT,
    "/update_weight_version": _DEVELOPMENT,
}


class ServerLost(Exception):
    """The server ended, or was started anew without the weights it had been given."""


class VllmServer:
    """One server. Safe to use from several threads.

    `base_url` ends with `/v1`, `api_key_env` names the variable that holds its key (raises AuthenticationError if that
    is not set), and `max_outage_s` is how long to wait for a server that answered before.
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        *,
        max_outage_s: float = 0.0,
        effects: Effects = Effects(),  # noqa: B008
    ) -> None:
        self._patient = replace(_RETRIES, max_outage_s=max_outage_s)
        key = read_key(api_key_env, "on_policy.engine_api_key_env")
        self._server = ModelServer(base_url, key, _TIMEOUT_S, effects=effects)
        self.root = self._server.root

    def post(self, path: str, body: object) -> Any:
        """Return what `path` answered with HTTP 200: the parsed JSON, or the text that is none.

        Raises EndpointError if it did not, also after retries.
        """
        return self._ask(path, lambda: self._server.post(path, body, self._patient))

    def load(self, path: str, body: object) -> Any:
        """Return as `post`, of a request that gives the server weights; raise ServerLost if the connection was lost."""
        return self._ask(path, lambda: self._server.post(path, body, self._patient, _is_gone), _is_gone)

    def complete(self, body: object) -> Any:
        """Return what `/v1/completions` answered, as `post`.

        Raises ServerLost if the connection was lost, or the server does not know the model.
        """
        path = "/v1/completions"
        return self._ask(path, lambda: self._server.post(path, body, self._patient, _is_lost), _is_lost)

    def weight_version(self) -> str:
        """Return what `/update_weight_version` was given last since it started; raises as `complete`."""
        path = "/weight_info"
        answer = self._ask(path, lambda: self._server.get(path, self._patient, _is_lost), _is_lost)
        return str(answer.get("weight_version")) if isinstance(answer, dict) else ""

    def models(self, *, is_first: bool = False) -> list[ListedModel]:
        """Return what it serves, at least one: base models and adapters; raises as `post`.

        Waits for a server that is being started again, unless this is the first request to it.
        """
        policy = _RETRIES if is_first else self._patient
        found: list[ListedModel] = self._ask("/v1/models", lambda: self._server.models(policy))
        return found

    def stop(self) -> None:
        """End all retries: nothing is tried again from now on, and waits are cut short."""
        self._server.stop_retries()

    def close(self) -> None:
        """Close the connections."""
        self.stop()
        self._server.close()

    def _ask(
        self, path: str, request: Callable[[], Any], is_lost: Callable[[Failure], bool] = lambda failure: False
    ) -> Any:
        try:
            return request()
        except RequestFailed as error:
            if is_lost(error.failure):
                raise ServerLost(error.failure.message) from error
            raise self._error(path, error.failure) from error

    def _error(self, path: str, failure: Failure) -> EndpointError:
        where = f"the vLLM server at {self.root}{path}"
        if failure.unreachable:
            return EndpointError(
                f"{where} cannot be reached: {failure.message}. Start it with the student's base model, mend "
                "on_policy.engine_url, or leave it out"
            )
        if failure.kind is FailureKind.AUTH:
            return AuthenticationError(
                f"{where} wants another key: {failure.message}. Name the variable that holds it in "
                "on_policy.engine_api_key_env"
            )
        return EndpointError(f"{where} does not do what is asked: {failure.message}. {_REMEDIES.get(path, '')}")


def _is_gone(failure: Failure) -> bool:
    return failure.status is None and failure.kind is FailureKind.TRANSIENT


def _is_lost(failure: Failure) -> bool:
    return _is_gone(failure) or failure.status == HTTPStatus.NOT_FOUND
