"""Which rollouts a collection starts, and when it has enough of them."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Final, Protocol

from stillhouse.types import Prompt, Trajectory

Accepts = Callable[[Trajectory], Awaitable[bool]]
"""Whether a finished trajectory is one that was wanted."""


class Plan(Protocol):
    """Says what to start next, and is told what came of it."""

    @property
    def total(self) -> int | None:
        """Rollouts in all; None where nobody can know."""

    def next(self) -> tuple[Prompt, int] | None:
        """Prompt and sample index to start now; None while that depends on rollouts under way, or once all is done."""

    async def finished(self, trajectory: Trajectory) -> None:
        """Takes note of a rollout that `next` gave and that has ended, well or not."""


class EverySample:
    """`num_samples` rollouts of each prompt, one prompt after the other.

    Args:
        prompts: distinct ones, drawn as they are needed.
        num_samples: rollouts of each.
    """

    def __init__(self, prompts: Iterable[Prompt], num_samples: int) -> None:
        self.total = len(prompts) * num_samples if isinstance(prompts, Sized) else None
        self._pairs = ((prompt, sample_index) for prompt in prompts for sample_index in range(num_samples))

    def next(self) -> tuple[Prompt, int] | None:
        """See `Plan.next`."""
        return next(self._pairs, None)

    async def finished(self, trajectory: Trajectory) -> None:
        """See `Plan.finished`."""


@dataclass(slots=True)
class _Asked:
    """One prompt so far."""

    prompt: Prompt
    num_started: int = 0
    num_running: int = 0
    num_accepted: int = 0


class UntilAccepted:
    """Rollouts until enough of them are accepted, and no more than could be needed.

    A rollout is started only while those accepted and those under way could still fall short, of the target and of
    what its prompt should give. So no answer is paid for that is not needed, at the price of a slower end: the last
    rows wait for each other's verdicts. Every prompt gets its first sample before one gets its second.

    Args:
        prompts: distinct ones, drawn as they are needed.
        num_samples: most rollouts of one prompt.
        target: accepted rollouts wanted in all.
        per_prompt: accepted rollouts wanted of one prompt; None lets one give all its samples.
        max_candidates: most rollouts in all; None leaves it to `num_samples`.
        accepts: asked of every rollout that ends.
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
        self._fresh = iter(prompts)
        self._num_samples = num_samples
        self._target = target
        self._per_prompt = per_prompt or num_samples
        self._max_candidates = max_candidates
        self._accepts = accepts
        self._num_running = 0
        self._waiting: deque[_Asked] = deque()
        self._asked: dict[str, _Asked] = {}

    def next(self) -> tuple[Prompt, int] | None:
        """See `Plan.next`."""
        if self.num_accepted + self._num_running >= self._target or self.num_started == self._max_candidates:
            return None
        asked = self._draw()
        if asked is None:
            return None
        sample_index = asked.num_started
        asked.num_started += 1
        asked.num_running += 1
        self.num_started += 1
        self._num_running += 1
        if self._wants_more(asked):
            self._waiting.append(asked)
        return asked.prompt, sample_index

    async def finished(self, trajectory: Trajectory) -> None:
        """See `Plan.finished`."""
        accepted = await self._accepts(trajectory)
        asked = self._asked[trajectory.prompt_id]
        wanted_more = self._wants_more(asked)
        asked.num_running -= 1
        asked.num_accepted += accepted
        self._num_running -= 1
        self.num_accepted += accepted
        if self._wants_more(asked) and not wanted_more:
            self._waiting.append(asked)
        elif asked.num_started == self._num_samples and asked.num_running == 0:
            del self._asked[trajectory.prompt_id]

    def _draw(self) -> _Asked | None:
        prompt = next(self._fresh, None)
        if prompt is not None:
            asked = self._asked[prompt.id] = _Asked(prompt)
            return asked
        return self._waiting.popleft() if self._waiting else None

    def _wants_more(self, asked: _Asked) -> bool:
        """Whether another sample of the prompt could be needed now; such prompts are those in `_waiting`."""
        could_give = asked.num_accepted + asked.num_running
        return could_give < self._per_prompt and asked.num_started < self._num_samples
