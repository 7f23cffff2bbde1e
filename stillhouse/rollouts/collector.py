"""`RolloutCollector`: many rollouts at once, without barriers, each recorded exactly once.

Rollouts start as the endpoint has room and trajectories are handed out as they finish, so that memory grows with the
number of running rollouts and not with the number of prompts. `plan` says which to start, `scheduler` when.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from stillhouse.agent.turns import TurnRules
from stillhouse.config import BudgetConfig, RolloutsConfig, RuntimeConfig
from stillhouse.inference.budget import Budget
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.journal import Journal
from stillhouse.inference.journalled_client import JournalledClient
from stillhouse.inference.model_client import ALONE_S, ModelClient
from stillhouse.inference.rate_limit import Controller, controller_of
from stillhouse.inference.requester import Requester
from stillhouse.inference.retry import MAX_OUTAGE_S, Effects
from stillhouse.inference.stats import RolloutStats
from stillhouse.inference.transport import Transport, open_transport
from stillhouse.processes.gc_tuning import rarely_collected
from stillhouse.progress.state import RolloutProgress
from stillhouse.rollouts.context import RolloutContext, ToolSets
from stillhouse.rollouts.plan import EverySample, Plan
from stillhouse.rollouts.reporter import Reporter
from stillhouse.rollouts.scheduler import Scheduler
from stillhouse.tools import Toolbox
from stillhouse.types import JsonObject, Message, StopReason, Trajectory

_LOG = logging.getLogger(__name__)
_REPORT_S: Final = 0.5
_MAX_UNREAD: Final = 64


class RolloutCollector:
    """Async iterator over the trajectories of a plan, in the order they finish.

    Iterate over it once; leave the loop early only inside `contextlib.aclosing`. Requests that the journal holds are
    not sent again. A rollout that fails is handed out with `StopReason.ERROR` and resumed by the next collection.

    A plan says what to start, such as `EverySample` of some prompts; each prompt is offered those configured tools that
    it names. `metadata` is by prompt id, for tools that take it. Without a budget nothing limits the spend; without a
    controller the endpoint's limits are those that all collections of this process share; without a transport one is
    opened, and closed at the end. `read` puts answers into the form to keep; without it those that meet the config's
    `response_schema` lose the code fence around them. `ready` is awaited before what the journal lacks is requested.
    `progress` is called about twice a second.

    Raises ConfigError if `response_schema` is no JSON schema. While iterating, EndpointError, AuthenticationError,
    QuotaError and BudgetReached, once answers in flight have come in and are durable, and StoreError.
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
        progress: Callable[[RolloutProgress], object] = lambda state: None,
        budget: Budget | None = None,
        metadata: Mapping[str, JsonObject] = MappingProxyType({}),
        controller: Controller | None = None,
        transport: Transport | None = None,
        read: Callable[[Message], Message] | None = None,
        effects: Effects = Effects(),  # noqa: B008
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.stats = RolloutStats()
        self._plan = plan
        self._endpoint = endpoint
        self._toolbox = toolbox
        self._journal = journal
        self._runtime = runtime
        self._given_transport = transport
        self._effects = effects
        self._budget = budget or Budget(BudgetConfig(), endpoint.price, effects.clock)
        controller = controller or controller_of(endpoint, runtime)
        self._reporter = Reporter(
            progress, self.stats, controller, total=plan.total, is_local=endpoint.is_local, clock=effects.clock
        )
        self._scheduler = Scheduler(plan, toolbox, controller, self._finish)
        requester = Requester(
            endpoint,
            controller,
            self._budget,
            max_attempts=runtime.max_attempts,
            # Nobody starts a server of this project again that lives and dies with the stage; vLLM is.
            max_outage_s=0.0 if endpoint.is_local and not endpoint.comes_back else MAX_OUTAGE_S,
            on_outage=partial(setattr, self._reporter, "outage_s"),
            hedge=runtime.hedge,
            stats=self.stats,
            effects=effects,
            ready=ready,
        )
        rules = TurnRules.of(config)
        # Recorded tokens belong to the answer as it was written.
        has_tokens = config.record_tokens or config.record_top_k is not None
        if read is None and rules.answer_schema is not None and not has_tokens:
            read = rules.answer_schema.bare
        self._make_context = partial(
            RolloutContext,
            endpoint=endpoint,
            config=config,
            rules=rules,
            read=read or (lambda message: message),
            tool_sets=ToolSets(config, endpoint.identity),
            journal=journal,
            requester=requester,
            stats=self.stats,
            asleep=self._scheduler.asleep,
            answered=self._scheduler.note_answer,
            samples_together=transport is None and isinstance(plan, EverySample) and config.num_samples > 1,
            metadata=metadata,
        )
        self._generator = self._collect()

    def __aiter__(self) -> AsyncGenerator[Trajectory, None]:
        return self._generator

    def stop(self, reason: BaseException) -> None:
        """Send nothing more; answers in flight come in and are durable before `reason` is raised to who iterates."""
        self._scheduler.stop(reason)

    async def aclose(self) -> None:
        """End the collection at once; answers in flight are lost, all others are in the journal."""
        await self._generator.aclose()

    async def _collect(self) -> AsyncGenerator[Trajectory, None]:
        self._finished: asyncio.Queue[Trajectory | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(_MAX_UNREAD)
        async with self._toolbox:
            transport = self._given_transport or open_transport(
                self._endpoint, timeout_s=self._runtime.request_timeout_s, clock=self._effects.clock
            )
            # Batches go whole, and servers of one's own refuse little.
            goes_alone = self._given_transport is None and not self._endpoint.is_own
            client = ModelClient(
                self._endpoint, transport, folder=self._journal.path.parent, alone_s=ALONE_S if goes_alone else 0.0
            )
            journalled = JournalledClient(client, self._journal, self.stats)
            rollouts = asyncio.create_task(self._scheduler.run(self._make_context(client=journalled)))
            rollouts.add_done_callback(lambda _: self._finished.put_nowait(None))
            reports = asyncio.create_task(self._report_on())
            try:
                with self._budget.ledger.running(), rarely_collected():
                    while (trajectory := await self._finished.get()) is not None:
                        self._room.release()
                        self.stats.num_rollouts += 1
                        yield trajectory
                await rollouts
            finally:
                tasks = [reports, rollouts, *self._scheduler.tasks]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                if self._given_transport is None:
                    await client.aclose()
                self._reporter.report()
        if self.stats.num_without_top:
            _LOG.warning(
                "rollouts.record_top_k: %d of %d answers came without the most probable tokens at each of theirs; a "
                "provider that ignores `top_logprobs` gives none, nor does OpenAI for tool calls",
                self.stats.num_without_top,
                self.stats.num_completions,
            )
        if self._scheduler.error is not None:
            raise self._scheduler.error

    async def _finish(self, trajectory: Trajectory) -> None:
        if trajectory.stop_reason in (StopReason.ERROR, StopReason.UNFINISHED):
            self.stats.num_failed += trajectory.stop_reason is StopReason.ERROR
            error = trajectory.error or {"kind": "error", "message": "no more is known"}
            _LOG.warning("rollout %s failed: %s: %s", trajectory.rollout_key[:12], error["kind"], error["message"])
        self._reporter.usd.add(sum(math.nan if turn.cost_usd is None else turn.cost_usd for turn in trajectory.turns))
        await self._plan.finished(trajectory)
        await self._room.acquire()
        self._finished.put_nowait(trajectory)

    async def _report_on(self) -> None:
        while True:
            self._reporter.report()
            await asyncio.sleep(_REPORT_S)
            # The limit grows without an event of its own.
            self._scheduler.wake()
