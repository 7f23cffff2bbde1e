"""Decode passes recorded once as CUDA graphs and replayed.

A decode step of a small model is hundreds of kernels of a few microseconds each, which a GPU finishes faster than
Python launches them; a graph is launched by one call. Shapes and addresses of a graph are fixed: rows are padded, and
inputs and outputs lie in fixed buffers.
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple
from weakref import WeakSet

import torch

from stillhouse.serving.sampling import PickSteps

logger = logging.getLogger(__name__)

Pass = Callable[[], torch.Tensor]
"""Computes picks [2, R] from fixed input buffers without changing them."""
Recorder = Callable[[Pass], Pass]
"""Turns a pass into a replayable one with equal buffers."""

_MOST_SPARE: Final = 4
"""A recorded pass also serves up to this factor fewer rows: recording costs what a hundred steps of a smaller pass may
save."""


class Shape(NamedTuple):
    """Key of a recorded pass."""

    rows: int
    columns: int
    """Columns visible to attention; all of the buffer with a kernel, which knows the lengths."""
    steps: PickSteps


class RecordedPasses:
    """Decode passes by their shape, each recorded when it is first needed."""

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._passes: dict[Shape, Pass] = {}

    def rows_for(self, count: int) -> int:
        """Rows of the pass that decodes `count` rows."""
        least = padded_rows(count)
        recorded = [shape.rows for shape in self._passes if least <= shape.rows <= _MOST_SPARE * least]
        return min(recorded, default=least)

    def get(self, shape: Shape, run: Pass) -> Pass:
        """The pass of this shape, `run` recorded at first use."""
        if shape not in self._passes:
            try:
                self._passes[shape] = self._record(run)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                # Such as a layer that reads the number of tokens of each expert on the host.
                logger.warning("decode passes of this model cannot be recorded and are launched one by one: %s", error)
                self._record = lambda plain: plain
                self._passes[shape] = run
        return self._passes[shape]

    def clear(self) -> None:
        """Drops all passes, since their buffers have moved."""
        self._passes.clear()


def padded_rows(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


def cuda_recorder() -> Recorder:
    """Records passes as CUDA graphs that share memory, since only one runs at a time."""
    living: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def record(run: Pass) -> Pass:
        # Warm up: allocations at first use must not become part of the graph.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # torch refuses the pool of a deleted graph whose tensors are in use, so share one of a living graph.
        pool = next((other.pool() for other in living), None)
        # Other threads, such as a scoring teacher, must not break the capture.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            picks = run()
        living.add(graph)

        def replay() -> torch.Tensor:
            graph.replay()
            return picks

        return replay

    return record
