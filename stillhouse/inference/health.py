"""`EndpointHealth`: which failure of one request shows that every other would fail as well."""

from typing import Final

from stillhouse.errors import AuthenticationError, EndpointError, QuotaError
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind

_MAX_FAILED_AT_FIRST: Final = 20
"""Requests that may fail for good before the first one succeeds."""
_AGAIN: Final = "then run the same command again: what was paid for is used again"


class EndpointHealth:
    """What the requests so far say about an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._last_contact = float("-inf")
        self._has_answered = False
        self._num_failed_at_first = 0

    def note_contact(self, now: float, *, answered: bool) -> None:
        """Records that the endpoint sent an answer or, with `answered` False, an error."""
        self._last_contact = now
        self._has_answered = self._has_answered or answered

    def fatal_error(self, failure: Failure, num_attempts: int, started: float) -> EndpointError | None:
        """The error to end the run with after a request was given up; None where others may still succeed.

        Args:
            failure: of the last attempt.
            num_attempts: attempts that a request has at most.
            started: when the request was first sent.
        """
        url, model = self._endpoint.base_url, self._endpoint.model
        if failure.kind is FailureKind.AUTH:
            return AuthenticationError(f"{url}: the API key was refused: {failure.message}{self._source_of_key()}")
        if failure.kind is FailureKind.QUOTA:
            return QuotaError(
                f"{url}: the account has no credit or allowance left: {failure.message}. Add credit or wait for the "
                f"allowance to be renewed, {_AGAIN}"
            )
        if failure.unreachable and self._last_contact < started:
            return EndpointError(
                f"{url}: cannot be reached after {num_attempts} tries: {failure.message}. Check that the server runs "
                f"and that base_url is right, {_AGAIN}"
            )
        if self._has_answered:
            return None
        if failure.status == 404:
            return EndpointError(
                f"{url}: does not serve model {model!r} here: {failure.message}. Check the model's name, and that "
                "base_url goes up to and with /v1"
            )
        if not failure.context_overflow and failure.kind is not FailureKind.CONTENT:
            self._num_failed_at_first += 1
        if self._num_failed_at_first < _MAX_FAILED_AT_FIRST:
            return None
        return EndpointError(
            f"{url}: the first {self._num_failed_at_first} requests to model {model!r} all failed; the last one: "
            f"{failure.message}. Check that the endpoint speaks the OpenAI chat form and takes these settings, {_AGAIN}"
        )

    def _source_of_key(self) -> str:
        variable = self._endpoint.key_variable
        if variable is None:
            return ""
        return (
            f". It was read from the environment variable {variable}: set the right one there or in .env, or name "
            f"another variable in {self._endpoint.role.key_setting}, and run the same command again"
        )
