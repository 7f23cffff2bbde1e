"""Plans: the rollouts that a collection starts, and when it has enough of them."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Final, Protocol

from stillhouse.types import Prompt, Trajectory

Accepts = Callable[[Trajectory], Awaitable[bool]]
"""True if a finished trajectory counts towards the target."""


class Plan(Protocol):
    """The order of rollouts to start."""

    @property
    def total(self) -> int | None:
        """Return the number of rollouts in all; None where that is not known beforehand."""

    def next(self) -> tuple[Prompt, int] | None:
        """Return prompt and sample index to start now; None while that depends on running rollouts, or at the end."""

    async def finished(self, trajectory: Trajectory) -> None:
        """Note that a rollout that `next` gave has ended, well or not."""


class EverySample:
    """`num_samples` rollouts of each prompt, one prompt after the other; prompts are drawn as they are needed."""

    def __init__(self, prompts: Iterable[Prompt], num_samples: int) -> None:
        self.total = len(prompts) * num_samples if isinstance(prompts, Sized) else None
        self._pairs = ((prompt, sample_index) for prompt in prompts for sample_index in range(num_samples))

    def next(self) -> tuple[Prompt, int] | None:
        return next(self._pairs, None)

    async def finished(self, trajectory: Trajectory) -> None:
        """See `Plan.finished`."""


@dataclass(slots=True)
class _Progress:
    """The rollouts started of one prompt, and what came of them."""

    prompt: Prompt
    num_started: int = 0
    num_running: int = 0
    num_accepted: int = 0


class UntilAccepted:
    """Rollouts until `target` are accepted, of one prompt at most `per_prompt`, and no more than could be needed.

    A rollout starts only while those accepted and those running could still fall short of the target and of the
    prompt's share. No answer is paid for without need, at the price of a slower end: the last rollouts wait for each
    other's verdicts. Every prompt gets its first sample before any gets its second.

    `prompts` are distinct, and drawn as they are needed. There are at most `num_samples` rollouts of one, and
    `max_candidates` in all. `accepts` is called with every trajectory.
    """

    def __init__(
        self,
        prompts: Iterable[Prompt],
        num_samples: int,
        *,
        target: int,
        per_prompt: int | None,
        max_candidates: int | None,
        accepts: Accepts,
    ) -> None:
        self.total: Final = None
        self.num_started = 0
        self.num_accepted = 0
        self._unseen = iter(prompts)
        self._num_samples = num_samples
        self._target = target
        self._per_prompt = per_prompt or num_samples
        self._max_candidates = max_candidates
        self._accepts = accepts
        self._num_running = 0
        self._waiting: deque[_Progress] = deque()
        self._by_id: dict[str, _Progress] = {}

    def next(self) -> tuple[Prompt, int] | None:
        if self.num_accepted + self._num_running >= self._target or self.num_started == self._max_candidates:
            return None
        progress = self._draw()
        if progress is None:
            return None
        sample_index = progress.num_started
        progress.num_started += 1
        progress.num_running += 1
        self.num_started += 1
        self._num_running += 1
        if self._wants_more(progress):
            self._waiting.append(progress)
        return progress.prompt, sample_index

    async def finished(self, trajectory: Trajectory) -> None:
        """See `Plan.finished`."""
        accepted = await self._accepts(trajectory)
        progress = self._by_id[trajectory.prompt_id]
        wanted_more = self._wants_more(progress)
        progress.num_running -= 1
        progress.num_accepted += accepted
        self._num_running -= 1
        self.num_accepted += accepted
        if self._wants_more(progress) and not wanted_more:
            self._waiting.append(progress)
        elif progress.num_started == self._num_samples and progress.num_running == 0:
            del self._by_id[trajectory.prompt_id]

    def _draw(self) -> _Progress | None:
        prompt = next(self._unseen, None)
        if prompt is not None:
            progress = self._by_id[prompt.id] = _Progress(prompt)
            return progress
        return self._waiting.popleft() if self._waiting else None

    def _wants_more(self, progress: _Progress) -> bool:
        """Return whether another sample of the prompt could be needed now; such prompts are those in `_waiting`."""
        could_give = progress.num_accepted + progress.num_running
        return could_give < self._per_prompt and progress.num_started < self._num_samples
