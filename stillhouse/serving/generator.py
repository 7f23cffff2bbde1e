"""Continuous batching over a plain transformers forward pass.

A synchronous state machine: `submit` queues requests, `step` advances every running request by one token, admits
waiting ones, and returns what finished. Nothing here is random but through a request's own seed, and nothing depends on
time, so equal calls give equal bits on a CPU.

Where passes are recorded, on CUDA, the host reads what a pass sampled only after it has launched the next one, so that
the device never waits for it. A row that a stop token ends is then decoded once more, in vain.

Profiled on one CPU thread with 64 rows of 100 prompt tokens, 64 sampled each. Embedded student (0.14 M parameters):
attention takes 40 % of a step, linear layers 18 %, the rest is dispatch of many small operations. Hidden size 512:
linear layers take 67 %, attention 20 %. `benchmarks/decoding.py` measures it beside `model.generate`.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import torch

from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.graphs import Recorder
from stillhouse.serving.passes import SlotPasses
from stillhouse.serving.prefixes import SlotTable
from stillhouse.serving.ragged import Kernel
from stillhouse.serving.sampling import Draw, HostPicks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PREFILL_TOKENS: Final = 8192
"""Most (padded) tokens prefilled in one step, so that running requests do not wait long for new ones."""
_UNIFORMS_AT_ONCE: Final = 64


@dataclass
class _Row:
    handle: int
    request: GenerationRequest
    max_tokens: int
    rng: torch.Generator
    cached: int
    """Tokens of prompt + completion whose keys and values are in the slot, or will be once its passes have run."""
    completion: list[int] = field(default_factory=list)
    """What the host has read."""
    logprobs: list[float] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)
    has_left: bool = False

    def next_draw(self) -> Draw:
        if not self.uniforms:
            block = torch.rand(_UNIFORMS_AT_ONCE, dtype=torch.float64, generator=self.rng)
            self.uniforms = block.flip(0).tolist()
        request = self.request
        return Draw(self.uniforms.pop(), request.temperature, request.top_p, request.processed_logprobs)

    @property
    def is_fully_sampled(self) -> bool:
        """Whether its last token has been sampled, if not read."""
        return self.cached - len(self.request.prompt_ids) + 1 >= self.max_tokens

    def finish_reason(self) -> Literal["stop", "length"] | None:
        if self.completion[-1] in self.request.stop_ids:
            return "stop"
        return "length" if len(self.completion) >= self.max_tokens else None


class _Launched(NamedTuple):
    """A pass that the host has not read yet."""

    rows: list[_Row]
    picks: HostPicks


class Generator:
    """Samples completions from `model`, up to `max_batch` at a time.

    Keys and values of finished sequences are kept while there is room: a request whose prompt continues one (the next
    turn of a conversation) computes only what is new, and requests of one prompt share what it computes. Weights must
    not change while a request is unfinished; where some are trainable they may change in between, so nothing is kept
    once no request is left.

    Args:
        model: In evaluation mode.
        max_batch: Requests that run at once.
        recorder: How decode passes are recorded to be replayed; None records them on CUDA, and nowhere else.
        kernel: How slots are attended to; None takes a kernel on CUDA where one serves the model, and masks elsewhere.

    Raises:
        ValueError: If the model attends in a way slots cannot serve (see `slot_masks`).
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        *,
        max_batch: int = 64,
        recorder: Recorder | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self.context_length: int = model.config.get_text_config().max_position_embeddings
        """Most tokens of prompt and completion together."""
        self._model = model
        self._passes = SlotPasses(model, max_batch, recorder, kernel)
        self._cache = self._passes.cache
        self._slots = SlotTable(self._cache)
        self._max_batch = max_batch
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._launched: deque[_Launched] = deque()
        self._num_submitted = 0

    @property
    def num_active(self) -> int:
        """Requests running or waiting."""
        return len(self._rows) + len(self._waiting)

    def submit(self, request: GenerationRequest) -> int:
        """Queues a request and returns its handle.

        Raises:
            ValueError: If the prompt is empty or fills the context, or `max_tokens` is not positive.
        """
        room = self.context_length - len(request.prompt_ids)
        if not request.prompt_ids or room < 1:
            raise ValueError(
                f"prompt has {len(request.prompt_ids)} tokens; expected 1 to {self.context_length - 1}, "
                f"the model's context less one token to sample"
            )
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.max_tokens}; expected at least 1")
        # Asked of the parameters themselves: their version counters miss fused optimisers and merged adapters.
        if not self.num_active and any(parameter.requires_grad for parameter in self._model.parameters()):
            self._slots.forget()
        handle = self._num_submitted
        self._num_submitted += 1
        rng = torch.Generator().manual_seed(request.seed)
        row = _Row(handle, request, min(request.max_tokens, room), rng, cached=0)
        self._cache.longest = max(self._cache.longest or 0, len(request.prompt_ids) + row.max_tokens)
        self._waiting.append(row)
        return handle

    @torch.inference_mode()
    def cancel(self, handle: int) -> None:
        """Drops a request; nothing happens when it has finished already."""
        self._waiting = deque(row for row in self._waiting if row.handle != handle)
        for index, row in enumerate(self._rows):
            if row.handle == handle:
                self._release(index)
                return

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Generation]]:
        """Advances by one token and returns the requests that finished, in no particular order.

        Where passes are recorded, those that finished by the step before.
        """
        if self._model.training:
            raise ValueError("the model is in training mode, in which caching and dropout go wrong; call model.eval()")
        finished: list[tuple[int, Generation]] = []
        unread = len(self._launched)
        if self._rows and not all(row.is_fully_sampled for row in self._rows):
            self._launch(list(self._rows), self._decode())
        if self._passes.is_recorded:
            finished = self._read(unread)
        admitted = self._admit()
        if admitted:
            first_slot = len(self._rows)
            logits = self._prefill(admitted)
            rows = self._rows[first_slot:]
            self._launch(rows, self._passes.pick(first_slot, logits, [row.next_draw() for row in rows]))
        if not self._passes.is_recorded:
            finished = self._read(len(self._launched))
        return finished

    def run(self, requests: Iterable[GenerationRequest]) -> list[Generation]:
        """Samples all requests and returns their generations in order.

        Raises:
            RuntimeError: If requests submitted before are still running.
        """
        if self.num_active:
            raise RuntimeError(f"{self.num_active} submitted requests are unfinished; step() them to their end first")
        handles = [self.submit(request) for request in requests]
        done: dict[int, Generation] = {}
        while self.num_active:
            done.update(self.step())
        return [done[handle] for handle in handles]

    def close(self) -> None:
        """Gives back the memory of keys and values, and of recorded passes; nothing can be sampled any more."""
        self._passes.close()

    def _admit(self) -> list[list[_Row]]:
        """Takes waiting requests, oldest first, in groups of one prompt."""
        room = self._max_batch - len(self._rows)
        groups: dict[tuple[int, ...], list[_Row]] = {}
        running = [row.request.prompt_ids for row in self._rows]
        longest = 0
        while self._waiting and room:
            row = self._waiting[0]
            prompt = tuple(row.request.prompt_ids)
            if prompt not in groups:
                longest = max(longest, len(prompt) - self._slots.reusable(prompt, running))
                if groups and longest * (len(groups) + 1) > _PREFILL_TOKENS:
                    break
                row.cached = self._slots.take(len(self._rows) + len(groups), prompt, running)
            groups.setdefault(prompt, []).append(self._waiting.popleft())
            room -= 1
        return list(groups.values())

    def _prefill(self, groups: Sequence[Sequence[_Row]]) -> torch.Tensor:
        """Makes running rows of groups whose first ones have a slot: those are fed, and the others copy them.

        Returns:
            Logits of the new rows in the order in which they run, [new rows, V].
        """
        first_slot = len(self._rows)
        leaders = [group[0] for group in groups]
        tokens = [list(row.request.prompt_ids[row.cached :]) for row in leaders]
        logits = self._passes.feed(first_slot, tokens, [row.cached for row in leaders])
        for row in leaders:
            row.cached = len(row.request.prompt_ids)
        self._rows += leaders
        sources = [place for place, group in enumerate(groups) for _ in group[1:]]
        if not sources:
            return logits
        followers = [row for group in groups for row in group[1:]]
        targets = list(range(len(self._rows), len(self._rows) + len(followers)))
        self._cache.reserve(targets[-1] + 1, 1)
        for slot in targets:
            self._slots.vacate(slot)
        for row in followers:
            row.cached = len(row.request.prompt_ids)
        longest = max(row.cached for row in followers)
        self._cache.copy_slots([first_slot + place for place in sources], targets, longest)
        self._rows += followers
        return logits[[*range(len(leaders)), *sources]]

    def _decode(self) -> torch.Tensor:
        """Feeds the last token of each running row; picks [2, rows] after it."""
        positions = [row.cached for row in self._rows]
        for row in self._rows:
            row.cached += 1
        num_expected = min(self._max_batch, self.num_active)
        return self._passes.decode(positions, [row.next_draw() for row in self._rows], num_expected)

    def _launch(self, rows: list[_Row], picks_2B: torch.Tensor) -> None:
        self._launched.append(_Launched(rows, HostPicks(picks_2B)))

    def _read(self, count: int) -> list[tuple[int, Generation]]:
        """Takes what the `count` oldest passes sampled, and releases the rows that they ended."""
        finished: list[tuple[int, Generation]] = []
        for launched in [self._launched.popleft() for _ in range(count)]:
            for row, token, logprob in zip(launched.rows, *launched.picks.read(), strict=True):
                if row.has_left:
                    continue
                row.completion.append(token)
                row.logprobs.append(logprob)
                reason = row.finish_reason()
                if reason is not None:
                    finished.append((row.handle, Generation(row.completion, row.logprobs, reason)))
                    row.has_left = True
        if finished:
            for index in range(len(self._rows) - 1, -1, -1):
                if self._rows[index].has_left:
                    self._release(index)
        return finished

    def _release(self, index: int) -> None:
        """Removes a row; the last one takes its slot, and its own keys and values are parked behind the rows."""
        row = self._rows[index]
        last = self._rows.pop()
        if last is not row:
            self._rows[index] = last
            self._passes.swap_slots(index, len(self._rows), max(row.cached, last.cached))
        row.has_left = True
        self._slots.park(len(self._rows), [*row.request.prompt_ids, *row.completion][: row.cached])
