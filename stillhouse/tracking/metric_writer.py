"""Writes metrics in the background, in order, with about one MLflow call a second.

MLflow's own asynchronous logging shares one queue between all runs of a store, tears it down when any run ends, and
reports a failed batch only through a private future.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

MAX_BATCH = 1000
"""Most metrics of one MLflow request."""
_INTERVAL_S = 1.0


class MetricPoint(NamedTuple):
    key: str
    value: float
    step: int
    timestamp_ms: int


class MetricWriter:
    """A thread that collects metric points for `write`, which takes up to `MAX_BATCH` in order and must not raise."""

    def __init__(self, write: Callable[[list[MetricPoint]], None]) -> None:
        self._write = write
        self._points: queue.SimpleQueue[MetricPoint] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, points: list[MetricPoint]) -> None:
        """Queue points, which are written within seconds; write them at once after `close`."""
        for point in points:
            self._points.put(point)
        if self._stopped.is_set():
            self.flush()
        elif self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tracking-metrics", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            self.flush()

    def flush(self) -> None:
        """Wait until all queued points are written."""
        # Held while writing, so that a flush waits for the thread's current batch.
        with self._lock:
            while batch := self._take():
                self._write(batch)

    def _take(self) -> list[MetricPoint]:
        batch: list[MetricPoint] = []
        with suppress(queue.Empty):
            while len(batch) < MAX_BATCH:
                batch.append(self._points.get_nowait())
        return batch
