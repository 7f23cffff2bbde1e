"""`Scheduler`: which rollouts of a plan are running, and when the next one starts.

event                                        reaction
the concurrency window has room              start the plan's next rollout; there are no barriers between prompts
a long prompt is to be sampled several times  its first sample goes ahead, the others follow its first answer
a prompt names a tool that is not configured that rollout fails before it starts
another process holds a rollout              try again once the plan has no more
an error that concerns every rollout         start no more, cancel those that wait, let answers in flight come in
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from stillhouse.errors import ConfigError
from stillhouse.inference.rate_limit import Controller
from stillhouse.rollouts.context import RolloutContext
from stillhouse.rollouts.plan import Plan
from stillhouse.rollouts.rollout import Halted, Rollout
from stillhouse.tools import Toolbox
from stillhouse.types import ErrorRecord, Prompt, Trajectory

_LOG = logging.getLogger(__name__)
_CLAIM_RETRY_S: Final = 1.0


class Scheduler:
    """Runs the rollouts of a plan, each as a task of its own; `finish` is awaited with each trajectory.

    It keeps the controller's concurrency window full. Each prompt is offered those tools of the toolbox that it names.
    """

    def __init__(
        self, plan: Plan, toolbox: Toolbox, controller: Controller, finish: Callable[[Trajectory], Awaitable[None]]
    ) -> None:
        self._plan = plan
        self._toolbox = toolbox
        self._controller = controller
        self._finish = finish
        self._running: dict[asyncio.Task[None], Rollout] = {}
        self._claimed_elsewhere: list[Rollout] = []
        self._held: dict[str, list[Rollout]] = {}
        """By prompt, the rollouts that wait for its first answer."""
        self._due: deque[Rollout] = deque()
        """Rollouts that have waited for it."""
        self._num_asleep = 0
        self._changed = asyncio.Event()
        self.error: BaseException | None = None
        """The error that stopped it before the end of the plan."""

    @property
    def tasks(self) -> Collection["asyncio.Task[None]"]:
        return self._running.keys()

    async def run(self, context: RolloutContext) -> None:
        """Run until the last rollout has ended, at the end of the plan or because of `error`."""
        self._context = context
        try:
            while self.error is None:
                if self._due:
                    await self._start_when_room(self._due.popleft())
                elif (planned := self._plan.next()) is not None:
                    rollout = await self._offered(*planned)
                    if rollout is not None and not self._is_held(rollout):
                        await self._start_when_room(rollout)
                elif self._running:
                    await self._next_change()
                elif self._claimed_elsewhere:
                    await self._take_over()
                else:
                    break
        # Also errors of the iterator of prompts must reach the collector.
        except Exception as error:
            self.stop(error)
        if self._running:
            await asyncio.wait(set(self._running))

    def stop(self, error: BaseException) -> None:
        """Start no more, cancel rollouts that lose nothing and let answers in flight come in."""
        if self.error is not None:
            return
        self.error = error
        self._changed.set()
        current = asyncio.current_task()
        for task, rollout in self._running.items():
            rollout.halted = True
            if task is not current and not rollout.holds_value:
                task.cancel()

    def wake(self) -> None:
        """Make the scheduler check again whether there is room."""
        self._changed.set()

    def note_answer(self, prompt_id: str) -> None:
        """Let the other samples of an answered prompt follow, which read it from the seller's cache."""
        if followers := self._held.pop(prompt_id, None):
            self._due.extend(followers)
            self._changed.set()

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Enter while a rollout wants no slot, so that another may start."""
        self._num_asleep += 1
        self._changed.set()
        try:
            yield
        finally:
            self._num_asleep -= 1

    async def _offered(self, prompt: Prompt, sample_index: int) -> Rollout | None:
        """Return the rollout with the tools that its prompt names; None where it failed, as one is not configured."""
        try:
            return Rollout(prompt, sample_index, self._toolbox.select(prompt.tools), self._context)
        except ConfigError as error:
            record: ErrorRecord = {"kind": "ConfigError", "message": str(error)}
            await self._finish(Rollout(prompt, sample_index, Toolbox([]), self._context).failed(record))
            return None

    def _is_held(self, rollout: Rollout) -> bool:
        """Return whether a rollout has to wait for the first answer to its prompt."""
        if rollout.reads_cache and rollout.sample_index == 0:
            self._held[rollout.prompt_id] = []
        elif rollout.prompt_id in self._held:
            self._held[rollout.prompt_id].append(rollout)
            return True
        return False

    async def _start_when_room(self, rollout: Rollout) -> None:
        """Start a rollout once there is room, unless the collection has stopped by then."""
        while self.error is None and not self._has_room():
            await self._next_change()
        if self.error is None:
            task = asyncio.create_task(self._run(rollout))
            self._running[task] = rollout
            task.add_done_callback(self._forget)

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _take_over(self) -> None:
        """Try again to claim rollouts of other processes: replay those finished by now, run those abandoned."""
        rollouts, self._claimed_elsewhere = self._claimed_elsewhere, []
        _LOG.info("waiting for %d rollouts that another process is at", len(rollouts))
        await asyncio.sleep(_CLAIM_RETRY_S)
        for rollout in rollouts:
            await self._start_when_room(rollout)

    def _has_room(self) -> bool:
        """Return whether to start another rollout: those that want a slot should fill the window, and little more.

        Rollouts that run a tool or wait before a retry want none. They have a bound of their own, or a dead endpoint
        would draw in every prompt.
        """
        limit = self._controller.limit
        num_wanting = len(self._running) - self._num_asleep
        return num_wanting < limit + max(2, limit // 4) and len(self._running) < 4 * limit + 16

    def _forget(self, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        self._changed.set()

    async def _run(self, rollout: Rollout) -> None:
        journal = self._context.journal
        try:
            if not await journal.claim(rollout.key):
                self._claimed_elsewhere.append(rollout)
                return
            try:
                trajectory = rollout.finished()
                if trajectory is None:
                    trajectory = await rollout.run()
                else:
                    self._context.stats.num_replayed_rollouts += 1
                    for turn in trajectory.turns:
                        self._context.requester.count_replayed(turn, self._context.config.max_tokens)
                await self._finish(trajectory)
            finally:
                journal.disclaim(rollout.key)
        except Halted:
            return
        # `Rollout.run` turns what concerns one rollout into a row; what it raises concerns all.
        except Exception as error:
            self.stop(error)
        finally:
            # Also of a first sample that failed, or that another process is at.
            self.note_answer(rollout.prompt_id)
