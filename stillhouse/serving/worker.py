"""The thread that runs the model: samples and scores for any number of callers at once.

Callers submit work and get a future. Between two decode steps the thread takes new work; scoring requests that wait
together are scored together. Which requests share a step, and so the last bits of their log-probabilities, depends on
their arrival: over HTTP a seed repeats a completion unless two tokens are tied to within rounding.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.models import AdaptedModel
from stillhouse.serving.score import RankedToken, rank_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_STOPPED = "the worker was stopped"


class WorkerStopped(RuntimeError):
    """The worker was stopped before the work was done."""


@dataclass(frozen=True)
class _Work:
    adapter: str | None
    future: "Future[Any]" = field(default_factory=Future, init=False)


@dataclass(frozen=True)
class _Sample(_Work):
    request: GenerationRequest


@dataclass(frozen=True)
class _Score(_Work):
    token_ids: Sequence[int]
    num_top: int
    temperature: float


@dataclass(frozen=True)
class _Change(_Work):
    apply: Callable[[AdaptedModel], None]


class ModelWorker:
    """Owns a model and the thread that runs it, from `start` to `stop`; then work is refused with WorkerStopped."""

    def __init__(self, model: "PreTrainedModel", *, max_batch: int = 64) -> None:
        self._model = AdaptedModel(model)
        self._max_batch = max_batch
        generator = Generator(model, max_batch=max_batch)
        self.context_length = generator.context_length
        """Most tokens of prompt and completion together."""
        self._generators: dict[str | None, Generator] = {None: generator}
        """By adapter; None is the model itself."""
        self._inbox: SimpleQueue[_Work | Future[Any] | None] = SimpleQueue()
        self._running: dict[tuple[str | None, int], Future[Generation]] = {}
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._loop, name="worker", daemon=True)

    @property
    def adapters(self) -> dict[str, str]:
        """Folders of the adapters that can be asked for, by name."""
        return self._model.folders

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends all unfinished work with `WorkerStopped`, after the step under way. Safe to call twice."""
        with self._lock:
            self._is_stopped = True
        self._inbox.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Waits for the thread to end."""
        self._thread.join(timeout_s)

    def sample(self, request: GenerationRequest, adapter: str | None = None) -> "Future[Generation]":
        """Queues a completion by the model or one of its adapters."""
        return self._put(_Sample(adapter, request))

    def score(
        self, token_ids: Sequence[int], *, num_top: int, temperature: float = 1.0, adapter: str | None = None
    ) -> "Future[list[RankedToken]]":
        """Queues the scoring of tokens 1, 2, ... of a sequence, as `rank_tokens`."""
        return self._put(_Score(adapter, token_ids, num_top, temperature))

    def change(self, apply: Callable[[AdaptedModel], None], adapter: str | None) -> "Future[None]":
        """Queues a change of an adapter, or of the model itself (None), between two steps.

        The future raises ValueError if `apply` does, or while completions of the changed weights are running.
        """
        return self._put(_Change(adapter, apply))

    def abandon(self, future: "Future[Any]") -> None:
        """Tells the worker that a future is no longer awaited, which cancels its completion."""
        self._inbox.put(future)

    def _put(self, work: _Work) -> "Future[Any]":
        with self._lock:
            if self._is_stopped:
                raise WorkerStopped(_STOPPED)
            self._inbox.put(work)
        return work.future

    def _loop(self) -> None:
        while not self._is_stopped:
            self._take_work()
            for adapter, generator in list(self._generators.items()):
                if generator.num_active and not self._is_stopped:
                    self._step(adapter, generator)
        _fail(self._running.values(), WorkerStopped(_STOPPED))
        with suppress(Empty):
            while True:
                work = self._inbox.get(block=False)
                if isinstance(work, _Work):
                    _fail([work.future], WorkerStopped(_STOPPED))

    def _take_work(self) -> None:
        """Takes all work that has arrived; blocks while idle."""
        scores: list[_Score] = []
        is_idle = not self._running
        while True:
            try:
                work = self._inbox.get(block=is_idle and not scores)
            except Empty:
                break
            is_idle = False
            if work is None:
                _fail((score.future for score in scores), WorkerStopped(_STOPPED))
                return
            if isinstance(work, Future):
                for adapter, handle in [key for key, running in self._running.items() if running is work]:
                    self._generators[adapter].cancel(handle)
                    del self._running[adapter, handle]
            elif not work.future.set_running_or_notify_cancel():
                continue  # cancelled by its caller
            elif isinstance(work, _Change):
                self._score(scores)
                scores.clear()
                self._change(work)
            elif work.adapter is not None and work.adapter not in self.adapters:
                work.future.set_exception(ValueError(f"adapter {work.adapter!r} was unloaded"))
            elif isinstance(work, _Score):
                scores.append(work)
            elif isinstance(work, _Sample):
                self._admit(work)
        self._score(scores)

    def _change(self, work: _Change) -> None:
        busy = [adapter for adapter, _ in self._running if work.adapter in (None, adapter)]
        try:
            if busy:
                raise ValueError(f"{len(busy)} completions of what is to change are under way; wait for their end")
            work.apply(self._model)
        except Exception as error:
            work.future.set_exception(error)
            return
        # Caches hold keys and values of the old weights.
        stale = list(self._generators) if work.adapter is None else [work.adapter]
        for adapter in stale:
            if adapter in self._generators:
                self._generators.pop(adapter).close()
        work.future.set_result(None)

    def _admit(self, work: _Sample) -> None:
        if work.adapter not in self._generators:
            self._generators[work.adapter] = Generator(self._model.model, max_batch=self._max_batch)
        generator = self._generators[work.adapter]
        try:
            self._running[work.adapter, generator.submit(work.request)] = work.future
        except ValueError as error:
            work.future.set_exception(error)

    def _step(self, adapter: str | None, generator: Generator) -> None:
        try:
            self._model.switch(adapter)
            finished = generator.step()
        except Exception as error:  # such as out of memory: fails the requests, not the thread
            failed = [key for key in self._running if key[0] == adapter]
            _fail((self._running.pop(key) for key in failed), error)
            self._generators.pop(adapter).close()
            return
        for handle, generation in finished:
            self._running.pop((adapter, handle)).set_result(generation)

    def _score(self, scores: Sequence[_Score]) -> None:
        groups: dict[tuple[int, float, str | None], list[_Score]] = defaultdict(list)
        for score in scores:
            groups[score.num_top, score.temperature, score.adapter].append(score)
        for (num_top, temperature, adapter), group in groups.items():
            sequences = [score.token_ids for score in group]
            try:
                self._model.switch(adapter)
                ranked = rank_tokens(self._model.model, sequences, num_top, temperature=temperature)
            except Exception as error:  # as in `_step`
                _fail((score.future for score in group), error)
                continue
            for score, tokens in zip(group, ranked, strict=True):
                score.future.set_result(tokens)


def _fail(futures: "Iterable[Future[Any]]", error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
