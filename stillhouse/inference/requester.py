"""`Requester`: the one loop in which a completion is asked for, within budget and rate limits, until it is there.

reserve its worst case  ->  wait for a slot  ->  send  ->  settle what it cost  ->  tell the limits how it ended
       ^                                          |
       `-------  wait, with the slot free  -------'  where its failure may pass
"""

import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol, TypeVar

from stillhouse.inference.budget import NOTHING, REFUSED, Budget, Spend, spend_of
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.endpoint_health import EndpointHealth
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.hedge import Hedging, Race
from stillhouse.inference.rate_limit import Controller, Outcome, RateLimits, RequestSize, Ticket
from stillhouse.inference.retry import Effects, RetryPolicy, Tries
from stillhouse.inference.stats import RolloutStats
from stillhouse.types import Turn


class ModelAnswer(Protocol):
    """An answer with the facts that budget and limits need."""

    @property
    def turn(self) -> Turn:
        """Return usage, cost and latency."""

    @property
    def limits(self) -> RateLimits | None:
        """Return the endpoint's limits by the headers."""


AnswerT = TypeVar("AnswerT", bound=ModelAnswer)


class Requester:
    """Sends requests to one endpoint within its rate limits and the budget.

    A slot is held only while a request is on the wire; while one waits to be tried again others use it.

    Args:
        max_attempts: attempts of one request; being rate limited is none.
        max_refused_s: longest time during which one request is refused by rate limits.
        max_outage_s: longest time during which no connection can be made to an endpoint that answered before.
        on_outage: called with the seconds since there was a connection, at each try that finds none, and with None
            once there is one again.
        hedge: send requests a second time that are overdue by far; only where no price is known, as both may be
            paid for, and where the server is not this run's own.
        ready: awaited before each request asks for a slot; what it raises ends the request.
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
        hedge: bool,
        stats: RolloutStats,
        effects: Effects,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._controller = controller
        self._budget = budget
        # The wait after a refusal is the controller's gate, which applies to all requests.
        self._patient = RetryPolicy(max_attempts, max_refused_s, waits_if_refused=False, max_outage_s=max_outage_s)
        self._on_outage = on_outage
        self._unreachable_at: float | None = None
        self._hedging = Hedging(enabled=hedge and endpoint.price is None and not endpoint.is_local)
        self._stats = stats
        self._effects = effects
        self._health = EndpointHealth(endpoint)
        self._ready = ready

    async def ask(
        self,
        send: Callable[[], Coroutine[None, None, AnswerT]],
        *,
        size: RequestSize,
        continuing: bool = False,
        asleep: Callable[[], AbstractContextManager[None]] = nullcontext,
        is_final: Callable[[Failure], bool] | None = None,
        about: str | None = None,
    ) -> AnswerT:
        """Return the answer of `send`, which makes one attempt, tried as often as its failures allow.

        `send` is called again while it waits if its answer is overdue. Requests of rollouts under way (`continuing`) go
        before new ones. `asleep` is entered while the request waits without asking for a slot. A caller that gives
        `is_final` deals with all failures by itself; those of which it is true are not tried again. `about` is the
        prompt's id: a refusal in the same words of several prompts concerns every one.

        Raise RequestFailed if this request alone failed for good, EndpointError if every one would (key refused, no
        money, unknown model, nobody there), BudgetReached if the run may not spend what it could cost.
        """
        if self._ready is not None:
            await self._ready()
        # Where nobody ever answered, the address is more likely to be wrong than the server to be down.
        policy = self._patient if self._health.was_reached else replace(self._patient, max_outage_s=0.0)
        started, tries = self._effects.clock(), Tries(policy, self._effects, is_final)
        while True:
            try:
                return await self._once(send, size, continuing=continuing)
            except RequestFailed as failed:
                failure = failed.failure
                wait_s = tries.wait_s(failure)
                if wait_s is None:
                    error = None if is_final else self._health.fatal_error(failure, policy, started, about)
                    if error is not None:
                        raise error from failed
                    raise
            continuing = True
            if failure.kind is not FailureKind.RATE:
                self._stats.retries[failure.kind] += 1
                with asleep():
                    await self._effects.sleep(wait_s)

    def count_replayed(self, turn: Turn, max_tokens: int) -> None:
        """Count a completion that an earlier attempt at its rollout paid for."""
        self._stats.num_replayed_completions += 1
        self._health.has_answered = True
        spent = spend_of(turn, self._endpoint.price)
        self._budget.count_replayed(spent or self._budget.worst_case(0, max_tokens))

    async def _once(
        self, send: Callable[[], Coroutine[None, None, AnswerT]], size: RequestSize, *, continuing: bool
    ) -> AnswerT:
        """Send a request within budget and limits, and a copy of it where it is overdue."""
        worst = await self._budget.reserve(self._budget.worst_case(size.prompt_characters, size.max_tokens))
        spent: Spend | None = NOTHING
        try:
            ticket = await self._controller.acquire(size, continuing=continuing)
            outcome: Outcome | None = None
            # A request that is cut off from here on may have been billed to the full.
            spent = None
            try:
                self._stats.num_requests += 1
                async with Race(self._hedging, lambda: self._copy(send, size, ticket)) as race:
                    race.answer = await send()
                if not race.by_copy:
                    outcome = self._note_answer(race.answer, size)
                    spent = spend_of(race.answer.turn, self._endpoint.price)
                return race.answer
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
            self._budget.settle(worst, spent)
            if spent is None or spent.usd is None:
                self._stats.possible_usd += worst.usd or 0.0

    def _copy(
        self, send: Callable[[], Coroutine[None, None, AnswerT]], size: RequestSize, ticket: Ticket
    ) -> Coroutine[None, None, AnswerT]:
        self._stats.num_copies += 1
        # Silent requests could otherwise hold every slot there is, with none left for their copies.
        if not ticket.settled:
            self._controller.release(ticket, None)
        return self._once(send, size, continuing=True)

    def _note_answer(self, answer: ModelAnswer, size: RequestSize) -> Outcome:
        turn = answer.turn
        self._note_contact(answered=True)
        self._stats.count(turn)
        if turn.cost_usd:
            self._hedging.stop()
        elif turn.latency_s is not None:
            self._hedging.note(turn.latency_s)
        prompt_tokens, completion_tokens = turn.usage.get("prompt_tokens"), turn.usage.get("completion_tokens")
        if prompt_tokens is not None:
            # The next worst cases are closer.
            self._budget.ledger.prompt_tokens.learn(size.prompt_characters, prompt_tokens)
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
