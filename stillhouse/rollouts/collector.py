"""`RolloutCollector`: many rollouts at once, without barriers, each recorded exactly once.

Rollouts are started as room appears and trajectories handed out as they finish, so memory follows the number of
rollouts under way and not the number of prompts. Which are started is up to a `plan`, and when to the `scheduler`. What
a rollout is made of is elsewhere: the loop in `agent`, its record in `rollout`, tries in `retry`, the limits in
`limits`, the money in `budget`, what is durable in `journal`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import Final

from stillhouse.config import BudgetConfig, RolloutsConfig, RuntimeConfig
from stillhouse.inference.budget import Budget, spend_of
from stillhouse.inference.completion import ChatClient
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.hedge import Hedging
from stillhouse.inference.journal import Journal
from stillhouse.inference.rate_limit import Controller, controller_of
from stillhouse.inference.retry import Effects, Requester
from stillhouse.inference.stats import RolloutStats
from stillhouse.progress.state import NoProgress, RolloutWatcher
from stillhouse.rollouts.context import RolloutContext
from stillhouse.rollouts.gc_tuning import rarely_collected
from stillhouse.rollouts.plan import Plan
from stillhouse.rollouts.reporter import Reporter
from stillhouse.rollouts.scheduler import Scheduler
from stillhouse.tools import Toolbox
from stillhouse.types import JsonObject, StopReason, Trajectory, Turn

_LOG = logging.getLogger(__name__)
_REPORT_S: Final = 0.5
_MAX_UNREAD: Final = 64


class RolloutCollector:
    """Trajectories of the rollouts that a plan asks for, in the order they finish.

    Iterate over it once with `async for`; leave the loop early only inside `contextlib.aclosing`. What the journal
    holds is not asked again. A rollout that fails is handed out with `StopReason.ERROR` and is owed by the next
    collection. `stats` counts what it did so far.

    Args:
        plan: what is started, `EverySample` of some prompts for one.
        endpoint: who is asked.
        config: what is sampled.
        toolbox: the tools configured; each prompt is offered those it names.
        journal: what was paid for before, and where answers become durable.
        runtime: bounds of concurrency, attempts and waiting.
        progress: told how things stand about twice a second.
        budget: what the run may spend; None sets no limit.
        metadata: of prompts, by their ids, for tools that ask for it.
        controller: the limits of the endpoint; None takes the process's own, which remember what an earlier one learnt.
        client: the HTTP path; None opens one and closes it at the end.
        effects: clock, sleep and jitter.

    Raises:
        EndpointError: nobody can be reached there, or the model is not served. AuthenticationError, QuotaError and
            BudgetReached as well; all of them while iterating, once answers under way have come in and are durable.
        StoreError: the journal cannot be written.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        endpoint: Endpoint,
        config: RolloutsConfig,
        toolbox: Toolbox,
        journal: Journal,
        runtime: RuntimeConfig,
        progress: RolloutWatcher = NoProgress(),  # noqa: B008
        budget: Budget | None = None,
        metadata: Mapping[str, JsonObject] = MappingProxyType({}),
        controller: Controller | None = None,
        client: ChatClient | None = None,
        effects: Effects = Effects(),  # noqa: B008
    ) -> None:
        self.stats = RolloutStats()
        self._plan = plan
        self._endpoint = endpoint
        self._config = config
        self._toolbox = toolbox
        self._journal = journal
        self._runtime = runtime
        self._metadata = metadata
        self._controller = controller or controller_of(endpoint, runtime)
        self._given_client = client
        self._effects = effects
        self._budget = budget or Budget(BudgetConfig(), endpoint.price, effects.clock)
        self._reporter = Reporter(
            progress,
            self.stats,
            self._controller,
            total=plan.total,
            clock=effects.clock,
        )
        self._scheduler = Scheduler(plan, toolbox, self._controller, self._finish)
        self._generator = self._collect()

    def __aiter__(self) -> AsyncGenerator[Trajectory, None]:
        return self._generator

    async def aclose(self) -> None:
        """Ends the collection at once; answers under way are lost, all others are in the journal."""
        await self._generator.aclose()

    async def _collect(self) -> AsyncGenerator[Trajectory, None]:
        self._finished: asyncio.Queue[Trajectory | None] = asyncio.Queue(_MAX_UNREAD)
        async with self._toolbox:
            client = self._given_client or self._open_client()
            rollouts = asyncio.create_task(self._schedule_all(self._room(client)))
            reports = asyncio.create_task(self._report_on())
            try:
                with self._budget.running(), rarely_collected():
                    while (trajectory := await self._finished.get()) is not None:
                        self.stats.num_done += 1
                        yield trajectory
                await rollouts
            finally:
                await _end([reports, rollouts, *self._scheduler.tasks])
                if self._given_client is None:
                    await client.aclose()
                self._reporter.report()
        _LOG.info("rollouts: %s", self.stats.as_facts())
        if self._scheduler.error is not None:
            raise self._scheduler.error

    def _open_client(self) -> ChatClient:
        # aiohttp takes a third of a second to import, which no command that asks nobody should wait for.
        from stillhouse.inference.http_client import HttpClient

        return HttpClient(self._endpoint, timeout_s=self._runtime.request_timeout_s, clock=self._effects.clock)

    def _room(self, client: ChatClient) -> RolloutContext:
        requester = Requester(
            self._endpoint,
            self._controller,
            self._budget,
            max_attempts=self._runtime.max_attempts,
            hedging=Hedging(enabled=self._runtime.hedge),
            stats=self.stats,
            effects=self._effects,
        )
        return RolloutContext(
            endpoint=self._endpoint,
            config=self._config,
            journal=self._journal,
            client=client,
            requester=requester,
            stats=self.stats,
            asleep=self._scheduler.asleep,
            metadata=self._metadata,
            replayed=self._count_replayed,
        )

    async def _schedule_all(self, room: RolloutContext) -> None:
        """Runs every rollout, then closes the queue of finished ones."""
        await self._scheduler.run(room)
        await self._finished.put(None)

    def _count_replayed(self, turn: Turn) -> None:
        self.stats.num_replayed += 1
        spent = spend_of(turn, self._endpoint.price)
        self._budget.count_replayed(spent or self._budget.worst_case(0, self._config.max_tokens))

    async def _finish(self, trajectory: Trajectory) -> None:
        if trajectory.stop_reason is StopReason.ERROR:
            self.stats.num_failed += 1
            error = trajectory.error or {"kind": "error", "message": "no more is known"}
            _LOG.warning("rollout %s failed: %s: %s", trajectory.rollout_key[:12], error["kind"], error["message"])
        costs = [turn.cost_usd for turn in trajectory.turns]
        self._reporter.count_rollout(None if None in costs else sum(cost for cost in costs if cost is not None))
        await self._plan.finished(trajectory)
        await self._finished.put(trajectory)

    async def _report_on(self) -> None:
        while True:
            self._reporter.report()
            await asyncio.sleep(_REPORT_S)
            # The limit grows without an event of its own.
            self._scheduler.wake()


async def _end(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
