"""`Requester`: requests to one endpoint within its rate limits and the budget, tried again where that may help."""

import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import ClassVar, Final, Protocol, TypeVar

from stillhouse.errors import AuthenticationError, EndpointError, QuotaError
from stillhouse.inference.budget import NOTHING, REFUSED, Budget, Spend, spend_of
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.hedge import Hedging
from stillhouse.inference.rate_limit import Controller, Outcome, RateLimits, RequestSize, Ticket
from stillhouse.inference.retry import Effects, RetryPolicy, with_retries
from stillhouse.inference.stats import RolloutStats
from stillhouse.types import Turn

_MAX_FAILED_AT_FIRST: Final = 20  # requests that may fail for good before the first one succeeds
_AGAIN: Final = "then run the same command again: what was paid for is used again"


class ModelAnswer(Protocol):
    """What an attempt must say about its answer."""

    @property
    def turn(self) -> Turn:
        """Usage, cost and latency."""

    @property
    def limits(self) -> RateLimits | None:
        """The endpoint's limits by the headers."""


AnswerT = TypeVar("AnswerT", bound=ModelAnswer)


class _EndpointHealth:
    """What the requests so far say about an endpoint: which failure shows that every other one would fail as well."""

    _reached: ClassVar[set[str]] = set()
    """Addresses that this process had an answer from, be it an error."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._last_contact = float("-inf")
        self._has_answered = False
        self._num_failed_at_first = 0

    def note_contact(self, now: float, *, answered: bool) -> None:
        """Records that the endpoint sent an answer or, with `answered` False, an error."""
        self._last_contact = now
        self._reached.add(self._endpoint.base_url)
        self._has_answered = self._has_answered or answered

    @property
    def was_reached(self) -> bool:
        return self._endpoint.base_url in self._reached

    def fatal_error(self, failure: Failure, policy: RetryPolicy, started: float) -> EndpointError | None:
        """The error to end the run with after a request was given up; None where others may still succeed."""
        url, model = self._endpoint.base_url, self._endpoint.model
        if failure.kind is FailureKind.AUTH:
            hint = ""
            if (variable := self._endpoint.key_variable) is not None:
                hint = (
                    f". It was read from the environment variable {variable}: set the right one there or in .env, or "
                    f"name another variable in {self._endpoint.role.key_setting}, and run the same command again"
                )
            return AuthenticationError(f"{url}: the API key was refused: {failure.message}{hint}")
        if failure.kind is FailureKind.QUOTA:
            return QuotaError(
                f"{url}: the account has no credit or allowance left: {failure.message}. Add credit or wait for the "
                f"allowance to be renewed, {_AGAIN}"
            )
        if failure.unreachable and self._last_contact < started:
            if policy.max_outage_s > 0.0:
                return EndpointError(
                    f"{url}: cannot be reached for {policy.max_outage_s:g} s, though it was before: {failure.message}. "
                    f"Start the server again, {_AGAIN}"
                )
            return EndpointError(
                f"{url}: cannot be reached after {policy.max_attempts} tries: {failure.message}. Check that the server "
                f"runs and that base_url is right, {_AGAIN}"
            )
        if self._has_answered:
            return None
        if failure.status == 404 and "no endpoints" in failure.message.lower():
            return EndpointError(
                f"{url}: no provider of model {model!r} takes these requests: {failure.message}. Choose a model that "
                "takes what is sent (tools, response_schema, record_top_k), or allow more providers in extra_body"
            )
        if failure.status == 404:
            return EndpointError(
                f"{url}: does not serve model {model!r} here: {failure.message}. Check the model's name, and that "
                "base_url goes up to and with /v1"
            )
        if not failure.context_overflow and failure.kind not in (FailureKind.CONTENT, FailureKind.MALFORMED):
            self._num_failed_at_first += 1
        if self._num_failed_at_first < _MAX_FAILED_AT_FIRST:
            return None
        return EndpointError(
            f"{url}: the first {self._num_failed_at_first} requests to model {model!r} all failed; the last one: "
            f"{failure.message}. Check that the endpoint speaks the OpenAI chat form and takes these settings, {_AGAIN}"
        )


class Requester:
    """Sends requests to one endpoint within its rate limits and the budget.

    A slot is held only while a request is on the wire; while one waits to be tried again others use it.

    Args:
        max_attempts: attempts of one request; being rate limited is none.
        max_refused_s: longest time during which one request is refused by rate limits.
        max_outage_s: longest time during which no connection can be made to an endpoint that answered before.
        on_outage: called with the seconds since there was a connection, at each try that finds none, and with None
            once there is one again.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        controller: Controller,
        budget: Budget,
        *,
        max_attempts: int,
        max_refused_s: float = math.inf,
        max_outage_s: float = 0.0,
        on_outage: Callable[[float | None], None] = lambda seconds: None,
        hedging: Hedging,
        stats: RolloutStats,
        effects: Effects,
    ) -> None:
        self._endpoint = endpoint
        self._controller = controller
        self._budget = budget
        # The wait after a refusal is the controller's gate, which applies to all requests.
        self._patient = RetryPolicy(max_attempts, max_refused_s, waits_if_refused=False, max_outage_s=max_outage_s)
        self._on_outage = on_outage
        self._unreachable_at: float | None = None
        self._hedging = hedging
        self._stats = stats
        self._effects = effects
        self._health = _EndpointHealth(endpoint)

    async def ask(
        self,
        send: Callable[[], Awaitable[AnswerT]],
        *,
        size: RequestSize,
        continuing: bool,
        asleep: Callable[[], AbstractContextManager[None]],
    ) -> AnswerT:
        """As `send_with_retries`, ending the run where every other request would fail as well.

        Raises:
            RequestFailed: it failed for good, and this request alone.
            EndpointError: every request would fail: key refused, no money, unknown model, nobody there.
            BudgetReached: the run may not spend what the request could cost.
        """
        started = self._effects.clock()
        try:
            return await self.send_with_retries(send, size=size, continuing=continuing, asleep=asleep)
        except RequestFailed as failed:
            error = self._health.fatal_error(failed.failure, self._policy, started)
            if error is not None:
                raise error from failed
            raise

    async def send_with_retries(
        self,
        send: Callable[[], Awaitable[AnswerT]],
        *,
        size: RequestSize,
        continuing: bool = False,
        asleep: Callable[[], AbstractContextManager[None]] = nullcontext,
        is_final: Callable[[Failure], bool] | None = None,
    ) -> AnswerT:
        """The answer of `send`, tried as often as its failures allow.

        `send` makes one attempt, and is called again while it waits if its answer is overdue. Requests of rollouts
        under way (`continuing`) go before new ones. `asleep` is entered while the request waits without asking for a
        slot, and failures of which `is_final` is true are the caller's.

        Raises:
            RequestFailed: it failed for good.
            BudgetReached: the run may not spend what the request could cost.
        """

        async def attempt() -> AnswerT:
            nonlocal continuing
            goes_first, continuing = continuing, True
            return await self._attempt(send, size, continuing=goes_first)

        return await with_retries(
            attempt, self._policy, self._effects, is_final=is_final, on_retry=self._count_retry, asleep=asleep
        )

    @property
    def _policy(self) -> RetryPolicy:
        """Where nobody ever answered, the address is more likely to be wrong than the server to be down."""
        return self._patient if self._health.was_reached else replace(self._patient, max_outage_s=0.0)

    def _count_retry(self, failure: Failure, wait_s: float) -> None:
        self._stats.retries[failure.kind] += 1

    async def _attempt(self, send: Callable[[], Awaitable[AnswerT]], size: RequestSize, *, continuing: bool) -> AnswerT:
        """One request within budget and limits, and a copy of it where it is overdue."""
        reservation = await self._budget.reserve(self._budget.worst_case(size.prompt_characters, size.max_tokens))
        spent: Spend | None = NOTHING
        try:
            ticket = self._controller.try_acquire(size, continuing=continuing)
            if ticket is None:
                ticket = await self._controller.acquire(size, continuing=continuing)
            outcome: Outcome | None = None
            # A request that is cut off from here on may have been billed to the full.
            spent = None
            try:
                self._stats.num_requests += 1
                first = await self._hedging.first_of(send(), lambda: self._copy(send, size, ticket))
                if not first.by_copy:
                    outcome = self._note_answer(first.answer, size)
                    spent = spend_of(first.answer.turn, self._endpoint.price)
                return first.answer
            except RequestFailed as failed:
                outcome = self._note_failure(failed.failure)
                # What was refused cost nothing; an answer that was lost on its way back was paid for.
                if failed.failure.unreachable or failed.failure.status not in (None, 200):
                    spent = REFUSED
                raise
            finally:
                if not ticket.settled:
                    self._controller.release(ticket, outcome)
        finally:
            self._budget.settle(reservation, spent)

    def _copy(
        self, send: Callable[[], Awaitable[AnswerT]], size: RequestSize, ticket: Ticket
    ) -> Coroutine[None, None, AnswerT]:
        # Silent requests could otherwise hold every slot there is, with none left for their copies.
        if not ticket.settled:
            self._controller.release(ticket, None)
        return self._attempt(send, size, continuing=True)

    def _note_answer(self, answer: ModelAnswer, size: RequestSize) -> Outcome:
        turn = answer.turn
        self._note_contact(answered=True)
        self._stats.count(turn)
        if turn.latency_s is not None:
            self._hedging.note(turn.latency_s)
        prompt_tokens, completion_tokens = turn.usage.get("prompt_tokens"), turn.usage.get("completion_tokens")
        if prompt_tokens is not None:
            self._budget.learn_prompt(size.prompt_characters, prompt_tokens)
        return Outcome(None, limits=answer.limits, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)

    def _note_failure(self, failure: Failure) -> Outcome:
        if failure.unreachable:
            now = self._effects.clock()
            self._unreachable_at = now if self._unreachable_at is None else self._unreachable_at
            self._on_outage(now - self._unreachable_at)
        elif failure.status is not None:
            self._note_contact(answered=False)
        self._stats.num_rate_limited += failure.kind is FailureKind.RATE
        return Outcome(failure.kind, failure.retry_after_s, failure.limits, failure.scope)

    def _note_contact(self, *, answered: bool) -> None:
        self._health.note_contact(self._effects.clock(), answered=answered)
        if self._unreachable_at is not None:
            self._unreachable_at = None
            self._on_outage(None)
