"""`EndpointHealth`: when the failure of one request shows that every other one would fail as well."""

import re
from collections import defaultdict
from typing import ClassVar, Final

from stillhouse.errors import AuthenticationError, EndpointError, QuotaError
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind
from stillhouse.inference.refused_setting import refused_alike
from stillhouse.inference.retry import RetryPolicy
from stillhouse.keys import place_of

_MAX_FAILED_AT_FIRST: Final = 20  # requests that may fail for good before the first one succeeds
_MAX_REFUSED_ALIKE: Final = 3  # prompts that may be refused in the same words before the first one succeeds
_OF_ONE_PROMPT: Final = (FailureKind.CONTENT, FailureKind.LENGTH, FailureKind.MALFORMED)
_AGAIN: Final = "then run the same command again: what was paid for is used again"


class EndpointHealth:
    """The state of one collection's endpoint, as its requests show it."""

    _reached: ClassVar[set[str]] = set()
    """Addresses that this process had an answer from, be it an error."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._last_contact = float("-inf")
        self.has_answered = False
        """Whether it answered, be it an earlier attempt."""
        self._num_failed_at_first = 0
        self._refused: defaultdict[str, set[str]] = defaultdict(set)
        """Prompts by the wording of their refusal, less numbers and ids."""

    def note_contact(self, now: float, *, answered: bool) -> None:
        """Record that the endpoint sent an answer or, with `answered` False, an error."""
        self._last_contact = now
        self._reached.add(self._endpoint.base_url)
        self.has_answered = self.has_answered or answered

    @property
    def was_reached(self) -> bool:
        return self._endpoint.comes_back or self._endpoint.base_url in self._reached

    def fatal_error(
        self, failure: Failure, policy: RetryPolicy, started: float, about: str | None = None
    ) -> EndpointError | None:
        """Return the error to end the run with after a request was given up; None where others may still succeed.

        `about` is the prompt; without one a refusal is not compared with others.
        """
        endpoint, model, message = self._endpoint, self._endpoint.model, failure.message.rstrip(".")

        def error(text: str, remedy: str, code: str | None = None) -> EndpointError:
            return EndpointError(f"{endpoint.base_url}: {text}. {remedy}", code=code)

        if failure.kind is FailureKind.AUTH:
            hint = ""
            if endpoint.key_variable is not None:
                hint = (
                    f". It is {endpoint.key_variable} of {place_of(endpoint.key_variable)}: set the right one there, "
                    f"or name another variable in {endpoint.role.key_setting}, and run the same command again"
                )
            return AuthenticationError(f"{endpoint.base_url}: the API key was refused: {message}{hint}")
        if failure.kind is FailureKind.QUOTA:
            return QuotaError(
                f"{endpoint.base_url}: the account has no credit or allowance left: {message}. Add credit or wait for "
                f"the allowance to be renewed, {_AGAIN}"
            )
        if failure.unreachable and self._last_contact < started:
            if policy.max_outage_s > 0.0:
                text = f"cannot be reached for {policy.max_outage_s:g} s, though it was before: {message}"
                return error(text, f"Start the server again, {_AGAIN}")
            remedy = f"Check that the server runs and that base_url is right, {_AGAIN}"
            return error(f"cannot be reached after {policy.max_attempts} tries: {message}", remedy, "unreachable")
        if self.has_answered:
            return None
        if failure.is_of_settings:
            return refused_alike(failure, endpoint, "model {} does not take what the config asks for: {}")
        if failure.status == 404 and "no endpoints" in message.lower():
            remedy = (
                "Choose a model that takes what is sent (tools, response_schema, record_top_k), or allow more "
                "providers in extra_body"
            )
            return error(f"no provider of model {model!r} takes these requests: {message}", remedy, "no-provider")
        if failure.status == 404:
            remedy = "Check the model's name, and that base_url goes up to and with /v1"
            return error(f"does not serve model {model!r} here: {message}", remedy, "unknown-model")
        if failure.is_refusal and about is not None:
            prompts = self._refused[re.sub(r"\S*\d\S*", "", failure.message)]
            prompts.add(about)
            if len(prompts) >= _MAX_REFUSED_ALIKE:
                return refused_alike(failure, endpoint, "model {} refuses every prompt alike: {}")
        if not failure.context_overflow and failure.kind not in _OF_ONE_PROMPT:
            self._num_failed_at_first += 1
        if self._num_failed_at_first < _MAX_FAILED_AT_FIRST:
            return None
        return error(
            f"the first {self._num_failed_at_first} requests to model {model!r} all failed; the last one: {message}",
            f"Check that the endpoint speaks the OpenAI chat form and takes these settings, {_AGAIN}",
        )
