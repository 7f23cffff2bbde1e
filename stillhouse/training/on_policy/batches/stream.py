"""`RolloutStream`: groups of rollouts, sampled without a break while the student trains (`on_policy.max_staleness`).

Prompts come in the order of their batches, each at its place in one stream. A batch takes the first `prompts_per_step`
finished groups in the order in which they began, so that short answers gain nothing. With n = max_staleness, u updates
a batch and a = n // u, a group that begins under v updates may be trained on up to batch (v + n) // u, and this holds
by two rules, so that nothing that was sampled is thrown away:

    a group begins while batch b is made or trained on     only if fewer than (b + 1 + a) * prompts_per_step ever have
    batch b is taken                                       once, for each k < a, at most k * prompts_per_step of the
                                                           groups that it leaves are due by batch b + k

A batch that left more could not be followed by batches with room for all of them; by the first rule the second can
always be met, after the groups that are due first have finished.

Finished groups are on disk until a batch has them. What a restarted training finds there is not sampled again, unless
it would be too old.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Final, Generic, TypeVar

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.batches.groups import FinishedGroups, batches_with_groups
from stillhouse.training.on_policy.batches.queue import stored_batch
from stillhouse.training.on_policy.sampling.engine import SamplingEngine, SamplingEngines
from stillhouse.training.on_policy.sampling.rollout import StudentRollout
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt

ReadyT = TypeVar("ReadyT")
_GROUPS: Final = "stream"
_POLL_S: Final = 0.2


@dataclass(slots=True)
class Group(Generic[ReadyT]):
    """A group that has begun and is in no batch."""

    prompt: Prompt
    policy_version: int
    """Of the weights that it began with."""
    ready: ReadyT | None = None
    """What `RolloutStream` prepared of its trajectories."""


class _Closed(Exception):
    pass


class RolloutStream(Generic[ReadyT]):
    """Samples in a thread of its own from the first `admit` on, until `close`.

    `prompts_of` returns the prompts of a batch, and `prepare` is called in that thread with each finished group.
    `folder` holds the batches, and finished groups in a folder below.
    """

    def __init__(
        self,
        sampler: Sampler,
        engines: SamplingEngines,
        config: OnPolicyConfig,
        prompts_of: Callable[[int], list[Prompt]],
        prepare: Callable[[list[SampledTrajectory]], ReadyT],
        folder: Path,
    ) -> None:
        self._sampler, self._engines, self._prepare, self._folder = sampler, engines, prepare, folder
        self._prompts_of = lru_cache(maxsize=4)(prompts_of)
        self._config, self._size = config, config.prompts_per_step
        self._ahead = config.max_staleness // config.updates_per_batch
        self._changed = threading.Condition()
        self._begun: dict[int, Group[ReadyT]] = {}
        """By place, in the order in which they began."""
        self._untaken: list[int] = []
        self._taken: list[int] = []
        """Places of the last batch."""
        self._num_taken = self._limit = self._version = self._num_resampled = 0
        self._idle_s = self._since = 0.0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_closed = False
        self._stack = ExitStack()

    def admit(self, index: int, policy_version: int) -> None:
        """Have groups begin as batch `index` allows, by the weights of `policy_version`, which the engines have."""
        with self._changed:
            # By now the batch that has them is on disk.
            for place in self._taken:
                self._store(place).forget(self._prompt(place).id)
            self._taken = []
            self._version = policy_version
            self._limit = min(index + 1 + self._ahead, self._config.num_batches) * self._size
            if self._thread is None:
                self._num_taken, self._since = index * self._size, time.monotonic()
                before = stored_batch(self._folder, index - 1)
                self._untaken = ([] if before is None else before.untaken) or [self._num_taken]
                self._load(index)
                engine = self._stack.enter_context(self._engines.engine(policy_version))
                self._thread = threading.Thread(target=self._run, args=[engine], name="rollouts", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def take(self, index: int) -> tuple[list[Group[ReadyT]], list[int], dict[str, float]]:
        """Return the groups of batch `index`, in the order in which they began, once they have finished.

        Also `RolloutTable.untaken`, and metrics. Raises what sampling raises.

        Metrics:
            sampler_idle_share: share of the time since the last batch in which nothing was being sampled.
            resampled_groups: groups that a restart found too old, and had sampled again.
        """
        with self._changed:
            while (chosen := self._chosen(index)) is None:
                if self._error is not None:
                    raise self._error
                self._changed.wait()
            groups = [self._begun.pop(place) for place in chosen]
            self._taken, self._num_taken = chosen, self._num_taken + self._size
            self._untaken = [place for place in self._untaken if place not in chosen]
            now = time.monotonic()
            idle_share, self._idle_s, self._since = self._idle_s / max(now - self._since, 1e-9), 0.0, now
            resampled, self._num_resampled = float(self._num_resampled), 0
            metrics = {"sampler_idle_share": idle_share, "resampled_groups": resampled}
            return groups, list(self._untaken), metrics

    def close(self) -> None:
        """End the sampling."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._stack.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise _Closed

    def _due(self, group: Group[ReadyT]) -> int:
        """Return the last batch that may have a group."""
        return (group.policy_version + self._config.max_staleness) // self._config.updates_per_batch

    def _chosen(self, index: int) -> list[int] | None:
        """Return the places of the groups of a batch; None while too few have finished."""
        chosen = [place for place, group in self._begun.items() if group.ready is not None][: self._size]
        left = [self._due(group) for place, group in self._begun.items() if place not in chosen]
        can_follow = all(sum(due <= index + k for due in left) <= k * self._size for k in range(self._ahead))
        return chosen if len(chosen) == self._size and can_follow else None

    def _next_place(self) -> int | None:
        """Return the place of the group to begin next; None if there is none at present.

        A batch has no prompt twice, so that none begins whose last group is in no batch yet.
        """
        if self._num_taken + len(self._begun) >= self._limit:
            return None
        under_way, rest = {group.prompt.id for group in self._begun.values()}, self._untaken[-1]
        # A batch's worth of prompts, all of them different, is in these places.
        for place in [*self._untaken[:-1], *range(rest, rest + 2 * self._size)]:
            if place not in self._begun and self._prompt(place).id not in under_way:
                self._reach(place)
                return place
        return None

    def _next_group(self, is_idle: bool) -> list[StudentRollout] | None:
        with self._changed:
            while (place := self._next_place()) is None:
                self._check_open()
                if not is_idle:
                    return None
                since = time.monotonic()
                self._changed.wait(_POLL_S)
                self._idle_s += time.monotonic() - since
            prompt, version = self._prompt(place), self._version
            self._begun[place] = Group(prompt, version)
        [token_ids] = self._sampler.prompt_ids([prompt])
        return self._sampler.begun(prompt, place // self._size, place, version, token_ids)

    def _finished(self, place: int, trajectories: list[SampledTrajectory]) -> None:
        self._store(place).add(trajectories)
        ready = self._prepare(trajectories)
        with self._changed:
            self._begun[place].ready = ready
            self._changed.notify_all()

    def _load(self, index: int) -> None:
        """Take in the groups that had finished when the training was killed, but for those that are too old."""
        found: list[tuple[int, int, list[SampledTrajectory]]] = []
        for batch in batches_with_groups(self._folder / _GROUPS):
            prompts = self._prompts_of(batch)
            for prompt_id, trajectories in self._store(batch * self._size).load(prompts).items():
                place = batch * self._size + [prompt.id for prompt in prompts].index(prompt_id)
                found.append((min(one.policy_version for one in trajectories), place, trajectories))
        for version, place, trajectories in sorted(found, key=itemgetter(0, 1)):
            group: Group[ReadyT] = Group(self._prompt(place), version)
            is_taken = place < self._untaken[-1] and place not in self._untaken
            if is_taken or self._due(group) < index:
                self._num_resampled += not is_taken
                self._store(place).forget(group.prompt.id)
                continue
            self._reach(place)
            group.ready = self._prepare(trajectories)
            self._begun[place] = group

    def _reach(self, place: int) -> None:
        """Have `_untaken` name each place up to one."""
        self._untaken += range(self._untaken[-1] + 1, place + 2)

    def _prompt(self, place: int) -> Prompt:
        return self._prompts_of(place // self._size)[place % self._size]

    def _store(self, place: int) -> FinishedGroups:
        return FinishedGroups(self._folder / _GROUPS, place // self._size)

    def _run(self, engine: SamplingEngine) -> None:
        try:
            self._sampler.run(engine, self._next_group, self._finished, self._check_open)
        except BaseException as error:  # raised where the batch is waited for
            with self._changed:
                self._error = error
                self._changed.notify_all()
