"""The one thread that runs the model: sampling and scoring for any number of callers at once.

Callers hand over work and get a future. Between two decode steps the thread takes what has come in; scoring requests
that wait together are scored together. Which requests share a step depends on when they arrive, and with it the last
bits of their log-probabilities: a seed repeats a completion over HTTP unless two tokens are tied to within rounding.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from stillhouse.serving.generator import Generation, GenerationRequest, Generator
from stillhouse.serving.score import RankedToken, rank_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_STOPPED = "the engine was stopped"


class EngineStopped(RuntimeError):
    """The engine was stopped before the work was done."""


@dataclass(frozen=True)
class _Sample:
    request: GenerationRequest
    future: "Future[Generation]" = field(default_factory=Future)


@dataclass(frozen=True)
class _Score:
    token_ids: Sequence[int]
    num_top: int
    temperature: float
    future: "Future[list[RankedToken]]" = field(default_factory=Future)


class Engine:
    """Owns a model and the thread that runs it, from `start` to `stop`."""

    def __init__(self, model: "PreTrainedModel", *, max_batch: int = 64) -> None:
        self._model = model
        self._max_batch = max_batch
        self._generator = Generator(model, max_batch=max_batch)
        self._inbox: SimpleQueue[_Sample | _Score | Future[Any] | None] = SimpleQueue()
        self._running: dict[int, Future[Generation]] = {}
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._generator.context_length

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends all unfinished work with `EngineStopped`, after the step under way. Safe to call twice."""
        with self._lock:
            self._is_stopped = True
        self._inbox.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Waits for the thread to end."""
        self._thread.join(timeout_s)

    def sample(self, request: GenerationRequest) -> "Future[Generation]":
        """Queues a completion.

        Raises:
            EngineStopped: If the engine was stopped.
        """
        work = _Sample(request)
        self._put(work)
        return work.future

    def score(self, token_ids: Sequence[int], *, num_top: int, temperature: float = 1.0) -> "Future[list[RankedToken]]":
        """Queues the scoring of tokens 1, 2, ... of a sequence, as `rank_tokens`.

        Raises:
            EngineStopped: If the engine was stopped.
        """
        work = _Score(token_ids, num_top, temperature)
        self._put(work)
        return work.future

    def abandon(self, future: "Future[Any]") -> None:
        """Says that nobody waits for a future any more; a completion is then not computed further."""
        self._inbox.put(future)

    def _put(self, work: _Sample | _Score) -> None:
        with self._lock:
            if self._is_stopped:
                raise EngineStopped(_STOPPED)
            self._inbox.put(work)

    def _loop(self) -> None:
        while not self._is_stopped:
            self._take_in()
            if self._generator.num_active and not self._is_stopped:
                self._step()
        self._fail(list(self._running.values()), EngineStopped(_STOPPED))
        self._drain()

    def _take_in(self) -> None:
        """Takes all work that has arrived; waits for some when there is nothing else to do."""
        scores: list[_Score] = []
        is_idle = self._generator.num_active == 0
        while True:
            try:
                work = self._inbox.get(block=is_idle and not scores)
            except Empty:
                break
            is_idle = False
            if work is None:
                self._fail([score.future for score in scores], EngineStopped(_STOPPED))
                return
            if isinstance(work, Future):
                self._cancel(work)
            elif not work.future.set_running_or_notify_cancel():
                continue  # nobody waits for it any more
            elif isinstance(work, _Score):
                scores.append(work)
            else:
                self._admit(work)
        if scores:
            self._score(scores)

    def _admit(self, work: _Sample) -> None:
        try:
            self._running[self._generator.submit(work.request)] = work.future
        except ValueError as error:
            work.future.set_exception(error)

    def _cancel(self, future: "Future[Any]") -> None:
        for handle, running in self._running.items():
            if running is future:
                self._generator.cancel(handle)
                del self._running[handle]
                return

    def _step(self) -> None:
        try:
            finished = self._generator.step()
        except Exception as error:  # out of memory, above all: the callers' failure, not the thread's end
            self._fail(list(self._running.values()), error)
            self._running.clear()
            self._generator = Generator(self._model, max_batch=self._max_batch)
            return
        for handle, generation in finished:
            self._running.pop(handle).set_result(generation)

    def _score(self, scores: Sequence[_Score]) -> None:
        groups: dict[tuple[int, float], list[_Score]] = defaultdict(list)
        for score in scores:
            groups[score.num_top, score.temperature].append(score)
        for (num_top, temperature), group in groups.items():
            sequences = [score.token_ids for score in group]
            try:
                ranked = rank_tokens(self._model, sequences, num_top, temperature=temperature)
            except Exception as error:  # as in `_step`
                self._fail([score.future for score in group], error)
                continue
            for score, tokens in zip(group, ranked, strict=True):
                score.future.set_result(tokens)

    def _fail(self, futures: "Sequence[Future]", error: Exception) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def _drain(self) -> None:
        while True:
            try:
                work = self._inbox.get(block=False)
            except Empty:
                return
            if isinstance(work, _Sample | _Score):
                self._fail([work.future], EngineStopped(_STOPPED))
