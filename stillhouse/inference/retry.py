"""One request until it succeeds or has failed for good: the only place that tries again.

A slot is held only while a request is on the wire; while one waits to be tried again others use it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from stillhouse.errors import AuthenticationError, EndpointError, QuotaError
from stillhouse.inference.budget import NOTHING, REFUSED, Budget, Spend, spend_of
from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.hedge import Hedging
from stillhouse.inference.rate_limit import Controller, Outcome, RequestSize, Ticket
from stillhouse.inference.stats import RolloutStats

_BASE_S: Final = 1.0
_CAP_S: Final = 60.0
_FINAL: Final = frozenset({FailureKind.PERMANENT, FailureKind.CONTENT})
_FATAL: Final = frozenset({FailureKind.AUTH, FailureKind.QUOTA})
_NEVER_ANSWERED: Final = 20


@dataclass(frozen=True, slots=True)
class Effects:
    """The outside world as the engine meets it; tests bring their own."""

    clock: Callable[[], float] = time.monotonic
    """Seconds that never go back."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    """Draws the jitter of waits; nothing that is kept depends on it."""


class _Slot:
    """A ticket that is released once, by whoever is first."""

    def __init__(self, controller: Controller, ticket: Ticket) -> None:
        self._controller = controller
        self._ticket: Ticket | None = ticket

    def release(self, outcome: Outcome | None) -> None:
        """See `Controller.release`."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._controller.release(ticket, outcome)


def _is_free(failure: Failure) -> bool:
    """Whether a failed request cost nothing: it was refused. One that was lost on the way back was paid for."""
    return failure.unreachable or failure.status not in (None, 200)


def backoff_s(attempt: int, retry_after_s: float | None, rng: random.Random) -> float:
    """Seconds to wait before the next try: uniform in [0, min(60, 2^(attempt - 1))], no less than Retry-After.

    Full jitter after Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015). A Retry-After above 60 s
    counts as 60: the next try will tell whether the endpoint meant it.

    Args:
        attempt: tries that have failed, from 1.
        retry_after_s: what the endpoint asked for; None if nothing.
        rng: draws the wait.
    """
    wait = rng.uniform(0.0, min(_CAP_S, _BASE_S * 2.0 ** min(attempt - 1, 30)))
    return max(wait, min(retry_after_s or 0.0, _CAP_S))


class Requester:
    """Sends the requests of one collection.

    Args:
        endpoint: who is asked.
        controller: admits requests.
        budget: what the run may spend; each request reserves its worst case first.
        max_attempts: tries of one request; being rate limited is none.
        hedging: sends copies of what is overdue.
        stats: counts.
        effects: clock, sleep and jitter.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        controller: Controller,
        budget: Budget,
        *,
        max_attempts: int,
        hedging: Hedging,
        stats: RolloutStats,
        effects: Effects,
    ) -> None:
        self._endpoint = endpoint
        self._controller = controller
        self._budget = budget
        self._max_attempts = max_attempts
        self._hedging = hedging
        self._stats = stats
        self._effects = effects
        self._last_contact = float("-inf")
        self._num_given_up = 0

    async def ask(
        self,
        send: Callable[[], Awaitable[Completion]],
        *,
        size: RequestSize,
        continuing: bool,
        asleep: Callable[[], AbstractContextManager[None]],
    ) -> Completion:
        """What `send` gives, tried as often as its failures allow.

        Args:
            send: makes one attempt; called with a slot in hand, and again while it waits if its answer is overdue.
            size: what one attempt asks of limits and budget.
            continuing: whether the rollout has been under way; it then goes before new ones.
            asleep: entered while the request waits without asking for a slot.

        Raises:
            RequestFailed: it failed for good, and this request alone.
            EndpointError: every request would fail: key refused, no money, unknown model, nobody there.
            BudgetReached: the run may not spend what the request could cost.
        """
        attempts = 0
        started = self._effects.clock()
        while True:
            try:
                return await self._attempt(send, size, continuing=continuing)
            except RequestFailed as failed:
                failure, continuing = failed.failure, True
                if failure.kind is FailureKind.RATE:
                    # The controller's gate is the wait: it alone knows what the endpoint asked of all.
                    continue
                attempts += 1
                if failure.kind in _FINAL or failure.kind in _FATAL or attempts >= self._max_attempts:
                    hopeless = self._hopeless(failure, attempts, gone=self._last_contact < started)
                    if hopeless is not None:
                        raise hopeless from failed
                    raise
                self._stats.retries[failure.kind] += 1
                with asleep():
                    await self._effects.sleep(backoff_s(attempts, failure.retry_after_s, self._effects.rng))

    async def _attempt(
        self, send: Callable[[], Awaitable[Completion]], size: RequestSize, *, continuing: bool
    ) -> Completion:
        """One request within budget and limits, and a copy of it where it is overdue."""
        reservation = await self._budget.reserve(self._budget.worst_case(size.prompt_characters, size.max_tokens))
        spent: Spend | None = NOTHING
        try:
            ticket = self._controller.try_acquire(size, continuing=continuing)
            if ticket is None:
                ticket = await self._controller.acquire(size, continuing=continuing)
            slot = _Slot(self._controller, ticket)
            outcome: Outcome | None = None
            # A request that is cut off from here on may have been billed to the full.
            spent = None
            try:
                self._stats.num_requests += 1
                answer = await self._hedging.first_of(send(), lambda: self._copy(send, size, slot))
                if not answer.by_copy:
                    outcome = self._note_answer(answer.completion, size)
                    spent = spend_of(answer.completion.turn, self._endpoint.price)
                return answer.completion
            except RequestFailed as failed:
                outcome = self._note_failure(failed.failure)
                if _is_free(failed.failure):
                    spent = REFUSED
                raise
            finally:
                slot.release(outcome)
        finally:
            self._budget.settle(reservation, spent)

    def _copy(
        self, send: Callable[[], Awaitable[Completion]], size: RequestSize, slot: "_Slot"
    ) -> Coroutine[None, None, Completion]:
        # Silent requests could otherwise hold every slot there is, with none left for their copies.
        slot.release(None)
        return self._attempt(send, size, continuing=True)

    def _note_answer(self, completion: Completion, size: RequestSize) -> Outcome:
        turn = completion.turn
        self._last_contact = self._effects.clock()
        self._stats.count(completion)
        if turn.latency_s is not None:
            self._hedging.note(turn.latency_s)
        prompt_tokens = turn.usage.get("prompt_tokens")
        if prompt_tokens is not None:
            self._budget.learn_prompt(size.prompt_characters, prompt_tokens)
        return Outcome(
            None,
            limits=completion.limits,
            prompt_tokens=prompt_tokens,
            completion_tokens=turn.usage.get("completion_tokens"),
        )

    def _note_failure(self, failure: Failure) -> Outcome:
        if failure.status is not None:
            self._last_contact = self._effects.clock()
        self._stats.num_rate_limited += failure.kind is FailureKind.RATE
        return Outcome(failure.kind, failure.retry_after_s, failure.limits, failure.scope)

    def _hopeless(self, failure: Failure, attempts: int, *, gone: bool) -> EndpointError | None:
        """The error to stop for where a request given up shows that all others would fail as well.

        Args:
            failure: of the last try.
            attempts: tries made.
            gone: whether nothing was heard of the endpoint since the request was first made.
        """
        url, model = self._endpoint.base_url, self._endpoint.model
        again = "then run the same command again: what was paid for is used again"
        if failure.kind is FailureKind.AUTH:
            return AuthenticationError(f"{url}: the API key was refused: {failure.message}{self._source_of_key()}")
        if failure.kind is FailureKind.QUOTA:
            return QuotaError(
                f"{url}: the account has no credit or allowance left: {failure.message}. Add credit or wait for the "
                f"allowance to be renewed, {again}"
            )
        if failure.unreachable and gone:
            return EndpointError(
                f"{url}: cannot be reached after {attempts} tries: {failure.message}. Check that the server runs and "
                f"that base_url is right, {again}"
            )
        if self._stats.num_completions > 0:
            return None
        if failure.status == 404:
            return EndpointError(
                f"{url}: does not serve model {model!r} here: {failure.message}. Check the model's name, and that "
                "base_url goes up to and with /v1"
            )
        if not failure.context_overflow and failure.kind is not FailureKind.CONTENT:
            self._num_given_up += 1
        if self._num_given_up < _NEVER_ANSWERED:
            return None
        return EndpointError(
            f"{url}: the first {self._num_given_up} requests to model {model!r} all failed; the last one: "
            f"{failure.message}. Check that the endpoint speaks the OpenAI chat form and takes these settings, {again}"
        )

    def _source_of_key(self) -> str:
        variable = self._endpoint.key_variable
        if variable is None:
            return ""
        return (
            f". It was read from the environment variable {variable}: set the right one there or in .env, or name "
            f"another variable in {self._endpoint.role.key_setting}, and run the same command again"
        )
