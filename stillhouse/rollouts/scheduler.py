"""`Scheduler`: which rollouts of a plan are under way, and when the next one starts.

event                                     what it does
the window has use for another rollout    starts the plan's next one; there are no barriers between prompts
a prompt names a tool that is not there   that rollout ends before it starts
another process is at a rollout           looks again once the plan has no more
an error that concerns every rollout      starts no more; ends those that wait, lets answers under way come in
"""

import asyncio
import logging
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
_ELSEWHERE_S: Final = 1.0


class Scheduler:
    """Runs the rollouts of a plan, each as a task of its own.

    Args:
        plan: what is started.
        toolbox: the tools configured; each prompt is offered those it names.
        controller: the limits of the endpoint, whose window is to be kept full.
        finish: told of each trajectory, and waited for.
    """

    def __init__(
        self, plan: Plan, toolbox: Toolbox, controller: Controller, finish: Callable[[Trajectory], Awaitable[None]]
    ) -> None:
        self._plan = plan
        self._toolbox = toolbox
        self._controller = controller
        self._finish = finish
        self._running: dict[asyncio.Task[None], Rollout] = {}
        self._elsewhere: list[Rollout] = []
        self._num_asleep = 0
        self._changed = asyncio.Event()
        self.error: Exception | None = None
        """What stopped it before the plan's end."""

    @property
    def tasks(self) -> Collection["asyncio.Task[None]"]:
        """Those of the rollouts under way."""
        return self._running.keys()

    async def run(self, room: RolloutContext) -> None:
        """Returns when the last rollout has ended; `error` then says whether that was the plan's end."""
        self._room = room
        try:
            while self.error is None:
                wanted = self._plan.next()
                if wanted is not None:
                    await self._admit(*wanted)
                elif self._running:
                    await self._next_change()
                elif self._elsewhere:
                    await self._take_over()
                else:
                    break
        # Whoever collects must hear of it, also when the prompts themselves raise.
        except Exception as error:
            self._halt(error)
        if self._running:
            await asyncio.wait(set(self._running))

    def wake(self) -> None:
        """Has it look again whether there is room."""
        self._changed.set()

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Entered while a rollout wants no slot, so that another may start."""
        self._num_asleep += 1
        self._changed.set()
        try:
            yield
        finally:
            self._num_asleep -= 1

    async def _admit(self, prompt: Prompt, sample_index: int) -> None:
        """Starts a rollout once there is room, or ends it where its prompt names a tool that is not there."""
        try:
            toolbox = self._toolbox.select(prompt.tools)
        except ConfigError as error:
            refused: ErrorRecord = {"kind": "ConfigError", "message": str(error)}
            await self._finish(Rollout(prompt, sample_index, Toolbox([]), self._room).failed(refused))
        else:
            await self._start_when_room(Rollout(prompt, sample_index, toolbox, self._room))

    async def _start_when_room(self, rollout: Rollout) -> None:
        """Nothing is started once the collection has to stop."""
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
        """Takes what other processes have finished by now, and runs what they left undone."""
        elsewhere, self._elsewhere = self._elsewhere, []
        _LOG.info("waiting for %d rollouts that another process is at", len(elsewhere))
        await asyncio.sleep(_ELSEWHERE_S)
        for rollout in elsewhere:
            await self._start_when_room(rollout)

    def _has_room(self) -> bool:
        """Whether another rollout would be of use: those that want a slot should fill the window, and little more.

        Rollouts in a tool or waiting to try again want none; they are bounded apart, or a dead endpoint would draw in
        every prompt there is.
        """
        limit = self._controller.limit
        wanting = len(self._running) - self._num_asleep
        return wanting < limit + max(2, limit // 4) and len(self._running) < 4 * limit + 16

    def _forget(self, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        self._changed.set()

    async def _run(self, rollout: Rollout) -> None:
        journal = self._room.journal
        try:
            if not await journal.claim(rollout.key):
                self._elsewhere.append(rollout)
                return
            try:
                if (replayed := rollout.finished()) is not None:
                    await self._finish_replayed(replayed)
                else:
                    await self._finish(await rollout.run())
            finally:
                journal.disclaim(rollout.key)
        except Halted:
            return
        # `Rollout.run` makes a row of what concerns one rollout; what comes out of it concerns all.
        except Exception as error:
            self._halt(error)

    async def _finish_replayed(self, trajectory: Trajectory) -> None:
        self._room.stats.num_replayed_rollouts += 1
        for turn in trajectory.turns:
            self._room.replayed(turn)
        await self._finish(trajectory)

    def _halt(self, error: Exception) -> None:
        """Ends what costs nothing and lets answers under way come in."""
        if self.error is not None:
            return
        self.error = error
        self._changed.set()
        current = asyncio.current_task()
        for task, rollout in self._running.items():
            rollout.halted = True
            if task is not current and not rollout.holds_value:
                task.cancel()
