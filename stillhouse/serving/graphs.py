"""Decode passes recorded once and replayed, without the processor's part in launching them.

A decode step of a small model is hundreds of kernels of a few microseconds each, which a GPU finishes faster than
Python launches them. Recorded as a CUDA graph they are launched by one call. A graph has fixed shapes and addresses:
rows are padded, and what a pass reads and gives lies in fixed places.
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple
from weakref import WeakSet

import torch

from stillhouse.serving.sampling import PickSteps

logger = logging.getLogger(__name__)

Pass = Callable[[], torch.Tensor]
"""Computes picks [2, R] from inputs that lie in fixed places, and changes none of them."""
Recorder = Callable[[Pass], Pass]
"""Turns a pass into one that computes the same from the same places."""

_MOST_SPARE: Final = 4
"""A recorded pass serves fewer rows than it was recorded for, down to this part of the next power of two: recording
another one costs what a hundred of its steps may save."""


class Shape(NamedTuple):
    """What a recorded pass is fixed to."""

    rows: int
    columns: int
    """That attention sees; all where it is told how many are filled."""
    steps: PickSteps


class RecordedPasses:
    """Decode passes by their shape, each recorded when it is first needed.

    Args:
        record: How a pass is recorded.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._passes: dict[Shape, Pass] = {}

    def rows_for(self, count: int) -> int:
        """Rows of the pass that decodes `count` rows."""
        least = padded_rows(count)
        recorded = [shape.rows for shape in self._passes if least <= shape.rows <= _MOST_SPARE * least]
        return min(recorded, default=least)

    def get(self, shape: Shape, make: Callable[[], Pass]) -> Pass:
        """The recorded pass of this shape, made and recorded where there is none yet."""
        if shape not in self._passes:
            self._passes[shape] = self._recorded(make())
        return self._passes[shape]

    def clear(self) -> None:
        """Forgets all: what they read and write is elsewhere now."""
        self._passes.clear()

    def _recorded(self, run: Pass) -> Pass:
        try:
            return self._record(run)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # Such as a layer that asks the processor how many tokens each expert has.
            logger.warning("decode passes of this model cannot be recorded and are launched one by one: %s", error)
            self._record = lambda plain: plain
            return run


def padded_rows(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


def cuda_recorder() -> Recorder:
    """Records passes as CUDA graphs, which share their memory as only one runs at a time."""
    living: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def record(run: Pass) -> Pass:
        # What libraries allocate at first use must not become part of a graph.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # torch refuses a pool whose graphs are gone while a tensor of it is still in use: then a new one is made.
        pool = next((other.pool() for other in living), None)
        # What other threads do meanwhile, such as a teacher that scores, is no part of the graph and breaks nothing.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            picks = run()
        living.add(graph)

        def replay() -> torch.Tensor:
            graph.replay()
            return picks

        return replay

    return record
