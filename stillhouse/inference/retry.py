"""Requests until they succeed or have failed for good: `with_retries` is the only place that sends anything again."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from stillhouse.errors import AuthenticationError, EndpointError, QuotaError
from stillhouse.inference.budget import NOTHING, REFUSED, Budget, Spend, spend_of
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.hedge import Hedging
from stillhouse.inference.rate_limit import Controller, Outcome, RateLimits, RequestSize, Ticket
from stillhouse.inference.stats import RolloutStats
from stillhouse.types import Turn

_BASE_S: Final = 1.0
_CAP_S: Final = 60.0
_MAX_FAILED_AT_FIRST: Final = 20  # requests that may fail for good before the first one succeeds
_AGAIN: Final = "then run the same command again: what was paid for is used again"
_FINAL: Final = frozenset({FailureKind.PERMANENT, FailureKind.CONTENT, FailureKind.AUTH, FailureKind.QUOTA})


class ModelAnswer(Protocol):
    """What an attempt must say about its answer."""

    @property
    def turn(self) -> Turn:
        """Usage, cost and latency."""

    @property
    def limits(self) -> RateLimits | None:
        """The endpoint's limits by the headers."""


ResultT = TypeVar("ResultT")
AnswerT = TypeVar("AnswerT", bound=ModelAnswer)


@dataclass(frozen=True, slots=True)
class Effects:
    """The outside world as the engine meets it; tests bring their own."""

    clock: Callable[[], float] = time.monotonic
    """Seconds that never go back."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    """Draws the jitter of waits; nothing that is kept depends on it."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_attempts: int
    """Attempts that fail otherwise than by a rate limit."""
    max_refused_s: float = math.inf
    """Longest time during which a request is refused by rate limits."""
    waits_if_refused: bool = True
    """Back off after a rate limit, too; False where a `Controller` holds the next attempt back."""


async def with_retries(
    attempt: Callable[[], Awaitable[ResultT]],
    policy: RetryPolicy,
    effects: Effects,
    *,
    is_final: Callable[[Failure], bool] | None = None,
    on_retry: Callable[[Failure, float], None] | None = None,
    asleep: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> ResultT:
    """The result of the first attempt that succeeds.

    Failures that no further attempt can mend are raised at once, and so are those of which `is_final` is true.
    `on_retry` is called before each backoff with the failure and the seconds to wait; `asleep` is entered during it.

    Raises:
        RequestFailed: the failure of the last attempt.
    """
    num_failed = num_refused = 0
    refused_at: float | None = None
    while True:
        try:
            return await attempt()
        except RequestFailed as failed:
            failure = failed.failure
            if failure.kind in _FINAL or (is_final is not None and is_final(failure)):
                raise
            if failure.kind is FailureKind.RATE:
                num_refused += 1
                refused_at = effects.clock() if refused_at is None else refused_at
                if effects.clock() - refused_at > policy.max_refused_s:
                    raise
                if not policy.waits_if_refused:
                    continue
            else:
                num_failed += 1
                if num_failed >= policy.max_attempts:
                    raise
        wait_s = backoff_s(num_failed + num_refused * policy.waits_if_refused, failure.retry_after_s, effects.rng)
        if on_retry is not None:
            on_retry(failure, wait_s)
        with asleep():
            await effects.sleep(wait_s)


def backoff_s(attempt: int, retry_after_s: float | None, rng: random.Random) -> float:
    """Seconds to wait before the next try: uniform in [0, min(60, 2^(attempt - 1))], no less than Retry-After.

    Full jitter after Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015). A Retry-After above 60 s
    counts as 60: the next try will show whether the endpoint meant it. `attempt` counts the failed tries, from 1.
    """
    wait = rng.uniform(0.0, min(_CAP_S, _BASE_S * 2.0 ** min(attempt - 1, 30)))
    return max(wait, min(retry_after_s or 0.0, _CAP_S))


class _EndpointHealth:
    """What the requests so far say about an endpoint: which failure shows that every other one would fail as well."""

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


class Requester:
    """Sends requests to one endpoint within its rate limits and the budget.

    A slot is held only while a request is on the wire; while one waits to be tried again others use it.

    Args:
        max_attempts: attempts of one request; being rate limited is none.
        max_refused_s: longest time during which one request is refused by rate limits.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        controller: Controller,
        budget: Budget,
        *,
        max_attempts: int,
        max_refused_s: float = math.inf,
        hedging: Hedging,
        stats: RolloutStats,
        effects: Effects,
    ) -> None:
        self._endpoint = endpoint
        self._controller = controller
        self._budget = budget
        # The wait after a refusal is the controller's gate, which applies to all requests.
        self._policy = RetryPolicy(max_attempts, max_refused_s, waits_if_refused=False)
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
            error = self._health.fatal_error(failed.failure, self._policy.max_attempts, started)
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
        self._health.note_contact(self._effects.clock(), answered=True)
        self._stats.count(turn)
        if turn.latency_s is not None:
            self._hedging.note(turn.latency_s)
        prompt_tokens, completion_tokens = turn.usage.get("prompt_tokens"), turn.usage.get("completion_tokens")
        if prompt_tokens is not None:
            self._budget.learn_prompt(size.prompt_characters, prompt_tokens)
        return Outcome(None, limits=answer.limits, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)

    def _note_failure(self, failure: Failure) -> Outcome:
        if failure.status is not None:
            self._health.note_contact(self._effects.clock(), answered=False)
        self._stats.num_rate_limited += failure.kind is FailureKind.RATE
        return Outcome(failure.kind, failure.retry_after_s, failure.limits, failure.scope)
