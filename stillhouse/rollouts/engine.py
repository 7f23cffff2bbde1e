"""`collect_rollouts`: many rollouts at once, without barriers, each recorded exactly once.

Prompts are drawn from their iterable as room appears and trajectories handed out as they finish, so memory follows the
number of rollouts under way and not the number of prompts. What a rollout is made of is elsewhere: the loop in `agent`,
its record in `rollout`, tries in `retry`, the in-flight limit in `limits`, what is durable in `journal`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Final

from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.errors import ConfigError
from stillhouse.progress import Progress
from stillhouse.rollouts.client import ChatClient
from stillhouse.rollouts.endpoint import Endpoint
from stillhouse.rollouts.journal import Journal
from stillhouse.rollouts.limits import Caps, Controller, shared_controller
from stillhouse.rollouts.retry import Effects, Requester
from stillhouse.rollouts.rollout import Halted, Rollout, RolloutRoom
from stillhouse.rollouts.stats import RolloutStats
from stillhouse.tools import Toolbox
from stillhouse.types import ErrorRecord, Prompt, StopReason, Trajectory

_LOG = logging.getLogger(__name__)
_PROGRESS_S: Final = 0.5
_MAX_UNREAD: Final = 64


def collect_rollouts(
    prompts: Iterable[Prompt],
    *,
    endpoint: Endpoint,
    config: RolloutsConfig,
    toolbox: Toolbox,
    journal: Journal,
    runtime: RuntimeConfig,
    progress: Progress,
    record_tokens: bool = False,
    controller: Controller | None = None,
    client: ChatClient | None = None,
    effects: Effects | None = None,
) -> "RolloutCollector":
    """Trajectories of `config.num_samples` rollouts a prompt, in the order they finish.

    Iterate over it once with `async for`; leave the loop early only inside `contextlib.aclosing`. What the journal
    holds is not asked again. A rollout that fails is handed out with `StopReason.ERROR` and is owed by the next
    collection.

    Args:
        prompts: distinct prompts, drawn as they are needed.
        endpoint: who is asked.
        config: what is sampled.
        toolbox: the tools configured; each prompt is offered those it names.
        journal: what was paid for before, and where answers become durable.
        runtime: bounds of concurrency, attempts and waiting.
        progress: told `rollouts` about twice a second.
        record_tokens: ask for token ids and log-probabilities of what is sampled.
        controller: the in-flight limit; None takes the process's own for this endpoint.
        client: the HTTP path; None opens one and closes it at the end.
        effects: clock, sleep and jitter; None takes the real ones.

    Raises:
        EndpointError: nobody can be reached there, or the model is not served. AuthenticationError and QuotaError as
            well; all of them while iterating, once answers under way have come in and are durable.
        StoreError: the journal cannot be written.
    """
    return RolloutCollector(
        prompts,
        endpoint=endpoint,
        config=config,
        toolbox=toolbox,
        journal=journal,
        runtime=runtime,
        progress=progress,
        record_tokens=record_tokens,
        controller=controller
        or shared_controller(
            endpoint,
            initial=runtime.concurrency,
            caps=Caps(runtime.max_concurrency, runtime.max_requests_per_minute, runtime.max_tokens_per_minute),
            memory=None,
        ),
        client=client,
        effects=effects or Effects(),
    )


class RolloutCollector:
    """A collection under way; see `collect_rollouts`. `stats` counts what it did so far."""

    def __init__(
        self,
        prompts: Iterable[Prompt],
        *,
        endpoint: Endpoint,
        config: RolloutsConfig,
        toolbox: Toolbox,
        journal: Journal,
        runtime: RuntimeConfig,
        progress: Progress,
        record_tokens: bool,
        controller: Controller,
        client: ChatClient | None,
        effects: Effects,
    ) -> None:
        self.stats = RolloutStats()
        self._prompts = prompts
        self._endpoint = endpoint
        self._config = config
        self._toolbox = toolbox
        self._journal = journal
        self._runtime = runtime
        self._progress = progress
        self._record_tokens = record_tokens
        self._controller = controller
        self._given_client = client
        self._effects = effects
        self._requester = Requester(
            endpoint, controller, max_attempts=runtime.max_attempts, stats=self.stats, effects=effects
        )
        self._running: dict[asyncio.Task[None], Rollout] = {}
        self._num_asleep = 0
        self._num_done = 0
        self._num_failed = 0
        self._fatal: Exception | None = None
        self._generator = self._collect()

    def __aiter__(self) -> AsyncGenerator[Trajectory, None]:
        return self._generator

    async def aclose(self) -> None:
        """Ends the collection at once; answers under way are lost, all others are in the journal."""
        await self._generator.aclose()

    async def _collect(self) -> AsyncGenerator[Trajectory, None]:
        self._changed = asyncio.Event()
        self._finished: asyncio.Queue[Trajectory | None] = asyncio.Queue(_MAX_UNREAD)
        self._started = self._effects.clock()
        client = self._given_client or self._open_client()
        admission = asyncio.create_task(self._admit_all(self._room(client)))
        ticker = asyncio.create_task(self._tell_progress())
        try:
            while (trajectory := await self._finished.get()) is not None:
                self._num_done += 1
                yield trajectory
            await admission
        finally:
            await _end([ticker, admission, *self._running])
            if self._given_client is None:
                await client.aclose()
            self._update_progress()
        _LOG.info("rollouts: %d done, %d of them failed; %s", self._num_done, self._num_failed, self.stats.as_facts())
        if self._fatal is not None:
            raise self._fatal

    def _open_client(self) -> ChatClient:
        # The openai package takes a second to import, which no command that asks nobody should wait for.
        from stillhouse.rollouts.openai_client import OpenAIClient

        return OpenAIClient(
            self._endpoint,
            timeout_s=self._runtime.request_timeout_s,
            max_connections=self._runtime.max_concurrency,
            clock=self._effects.clock,
        )

    def _room(self, client: ChatClient) -> RolloutRoom:
        return RolloutRoom(
            endpoint=self._endpoint,
            config=self._config,
            journal=self._journal,
            client=client,
            requester=self._requester,
            stats=self.stats,
            record_tokens=self._record_tokens,
            asleep=self._asleep,
        )

    async def _admit_all(self, room: RolloutRoom) -> None:
        """Starts rollouts as room appears, waits for the last, and closes the queue of finished ones."""
        try:
            for rollout, refused in self._rollouts(room):
                if refused is not None:
                    await self._finish(refused)
                    continue
                if (trajectory := rollout.finished()) is not None:
                    self.stats.num_replayed += len(trajectory.turns)
                    await self._finish(trajectory)
                    continue
                while self._fatal is None and not self._has_room():
                    self._changed.clear()
                    await self._changed.wait()
                if self._fatal is not None:
                    break
                self._start(rollout)
        # Whoever iterates must hear of it, also when the prompts themselves raise.
        except Exception as error:
            self._halt(error)
        if self._running:
            await asyncio.wait(set(self._running))
        await self._finished.put(None)

    def _rollouts(self, room: RolloutRoom) -> Iterator[tuple[Rollout, Trajectory | None]]:
        """Every rollout owed; with its failed trajectory where the prompt names a tool that is not there."""
        for prompt in self._prompts:
            refused: ErrorRecord | None = None
            try:
                toolbox = self._toolbox.select(prompt.tools)
            except ConfigError as error:
                toolbox = Toolbox([])
                refused = {"kind": "ConfigError", "message": str(error)}
            for sample_index in range(self._config.num_samples):
                rollout = Rollout(prompt, sample_index, toolbox, room)
                yield rollout, None if refused is None else rollout.failed(refused)

    def _has_room(self) -> bool:
        """Whether another rollout would be of use: those that want a slot should fill the window, and little more.

        Rollouts in a tool or waiting to try again want none; they are bounded apart, or a dead endpoint would draw in
        every prompt there is.
        """
        limit = self._controller.limit
        wanting = len(self._running) - self._num_asleep
        return wanting < limit + max(2, limit // 4) and len(self._running) < 4 * limit + 16

    def _start(self, rollout: Rollout) -> None:
        task = asyncio.create_task(self._run(rollout))
        self._running[task] = rollout
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        self._changed.set()

    async def _run(self, rollout: Rollout) -> None:
        try:
            trajectory = await rollout.run()
        except Halted:
            return
        # `Rollout.run` makes a row of what concerns one rollout; what comes out of it concerns all.
        except Exception as error:
            self._halt(error)
            return
        await self._finish(trajectory)

    async def _finish(self, trajectory: Trajectory) -> None:
        if trajectory.stop_reason is StopReason.ERROR:
            self._num_failed += 1
            _LOG.warning("rollout %s failed: %s", trajectory.rollout_key[:12], trajectory.error)
        await self._finished.put(trajectory)

    def _halt(self, error: Exception) -> None:
        """Ends what costs nothing and lets answers under way come in."""
        if self._fatal is not None:
            return
        self._fatal = error
        self._changed.set()
        current = asyncio.current_task()
        for task, rollout in self._running.items():
            rollout.halted = True
            if task is not current and not rollout.holds_value:
                task.cancel()

    @contextmanager
    def _asleep(self) -> Iterator[None]:
        self._num_asleep += 1
        self._changed.set()
        try:
            yield
        finally:
            self._num_asleep -= 1

    async def _tell_progress(self) -> None:
        while True:
            self._update_progress()
            await asyncio.sleep(_PROGRESS_S)
            # The limit grows without an event of its own.
            self._changed.set()

    def _update_progress(self) -> None:
        snapshot = self._controller.snapshot()
        elapsed_s = max(self._effects.clock() - self._started, 1e-9)
        self._progress.update(
            "rollouts",
            self._num_done,
            len(self._prompts) * self._config.num_samples if isinstance(self._prompts, Sized) else None,
            tokens_per_s=round(self.stats.completion_tokens / elapsed_s, 1),
            in_flight=snapshot.in_flight,
            limit=snapshot.limit,
            rate_limited=self.stats.num_rate_limited,
            retries=self.stats.retries.total(),
            failed=self._num_failed,
            limit_reason=snapshot.reason,
        )


async def _end(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
