"""The thread that runs the model: samples and scores for any number of callers at once.

Callers submit work and get a future. Between two decode steps the thread takes new work; scoring requests that wait
together are scored together. Which requests share a step, and so the last bits of their log-probabilities, depends on
their arrival: over HTTP a seed repeats a completion unless two tokens are tied to within rounding.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.score import RankedToken

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from stillhouse.serving.gguf import GgufModel


class WorkerStopped(RuntimeError):
    """The worker was stopped before the work was done."""

    def __init__(self) -> None:
        super().__init__("the worker was stopped")


@dataclass(frozen=True)
class _Work:
    future: "Future[Any]" = field(default_factory=Future, init=False)


@dataclass(frozen=True)
class _Sample(_Work):
    request: GenerationRequest


@dataclass(frozen=True)
class _Score(_Work):
    token_ids: Sequence[int]
    num_top: int
    temperature: float


class ModelWorker:
    """Owns a model and the thread that runs it, from `start` to `stop`; then work is refused with WorkerStopped."""

    def __init__(self, model: "PreTrainedModel | GgufModel", *, max_batch: int = 64) -> None:
        self._model = model
        self._max_batch = max_batch
        self._generator = Generator(model, max_batch=max_batch)
        self.context_length = self._generator.context_length
        """Most tokens of prompt and completion together."""
        self.vocab_size = self._generator.vocab_size
        self._inbox: SimpleQueue[_Work | Future[Any] | None] = SimpleQueue()
        self._running: dict[int, Future[Generation]] = {}
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._loop, name="worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End all unfinished work with `WorkerStopped`, after the step under way. Safe to call twice."""
        with self._lock:
            self._is_stopped = True
        self._inbox.put(None)

    def sample(self, request: GenerationRequest) -> "Future[Generation]":
        return self._put(_Sample(request))

    def score(self, token_ids: Sequence[int], *, num_top: int, temperature: float = 1.0) -> "Future[list[RankedToken]]":
        """Queue the scoring of tokens 1, 2, ... of a sequence, as `rank_tokens`."""
        return self._put(_Score(token_ids, num_top, temperature))

    def abandon(self, future: "Future[Any]") -> None:
        """Tell the worker that a future is no longer awaited, which cancels its completion."""
        self._inbox.put(future)

    def _put(self, work: _Work) -> "Future[Any]":
        with self._lock:
            if self._is_stopped:
                raise WorkerStopped
            self._inbox.put(work)
        return work.future

    def _loop(self) -> None:
        while not self._is_stopped:
            self._take_work()
            if self._generator.num_active and not self._is_stopped:
                self._step()
        _fail(self._running.values(), WorkerStopped())
        with suppress(Empty):
            while True:
                work = self._inbox.get(block=False)
                if isinstance(work, _Work):
                    _fail([work.future], WorkerStopped())

    def _take_work(self) -> None:
        """Take all work that has arrived; block while idle."""
        scores: list[_Score] = []
        is_idle = not self._running
        while True:
            try:
                work = self._inbox.get(block=is_idle and not scores)
            except Empty:
                break
            is_idle = False
            if work is None:
                _fail((score.future for score in scores), WorkerStopped())
                return
            if isinstance(work, Future):
                for handle in [handle for handle, running in self._running.items() if running is work]:
                    self._generator.cancel(handle)
                    del self._running[handle]
            elif not work.future.set_running_or_notify_cancel():
                continue  # cancelled by its caller
            elif isinstance(work, _Score):
                scores.append(work)
            elif isinstance(work, _Sample):
                try:
                    self._running[self._generator.submit(work.request)] = work.future
                except ValueError as error:
                    work.future.set_exception(error)
        self._score(scores)

    def _step(self) -> None:
        try:
            finished = self._generator.step()
        except Exception as error:  # such as out of memory: fails the requests, not the thread
            _fail(self._running.values(), error)
            self._running.clear()
            self._generator.close()
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
                ranked = self._generator.rank(sequences, num_top, temperature=temperature)
            except Exception as error:  # as in `_step`
                _fail((score.future for score in group), error)
                continue
            for score, tokens in zip(group, ranked, strict=True):
                score.future.set_result(tokens)


def _fail(futures: "Iterable[Future[Any]]", error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
