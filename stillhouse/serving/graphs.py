"""Decode passes recorded once and replayed, without the processor's part in launching them.

A decode step of a small model is hundreds of kernels of a few microseconds each, which a GPU finishes faster than
Python launches them. Recorded as a CUDA graph they are launched by one call. A graph has fixed shapes and addresses:
rows are padded to a power of two, what attention sees to a multiple of 256 columns, and inputs are copied into place.
Dimensions: R padded rows, V vocabulary.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import torch

from stillhouse.serving.slots import SlotCache

logger = logging.getLogger(__name__)

Pass = Callable[[], torch.Tensor]
"""Computes logits [R, V] from inputs that lie in fixed places."""
Recorder = Callable[[Pass], Pass]
"""Turns a pass into one that computes the same from the same places."""

_COLUMNS: Final = 256


class RecordedDecoding:
    """Decode passes by their shape, each recorded when it is first needed.

    Args:
        decode: logits [R, V] after one token a row; given ids and positions, both [R, 1].
        cache: holds what the rows have seen, from slot 0 on.
        record: how a pass is recorded.
    """

    def __init__(
        self, decode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], cache: SlotCache, record: Recorder
    ) -> None:
        self._decode = decode
        self._cache = cache
        self._record = record
        self._inputs = torch.zeros(3, 1, dtype=torch.long, device=cache.device)
        """Token id, position and target in the cache of each row."""
        self._passes: dict[tuple[int, int], Pass] = {}

    def logits(self, token_ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Logits [len(token_ids), V] after one token of each row, which is then in the cache at its position.

        They are overwritten by the next call.
        """
        count = len(token_ids)
        num_rows = padded_rows(count)
        num_columns = -(-(max(positions) + 1) // _COLUMNS) * _COLUMNS
        if self._cache.reserve(num_rows, num_columns):
            self._passes.clear()
        if num_rows > self._inputs.shape[1]:
            self._inputs = self._inputs.new_zeros(3, num_rows)
            self._passes.clear()
        # Rows that are none write where nobody reads.
        spare = [0] * (num_rows - count)
        targets = [row * self._cache.num_columns + position for row, position in enumerate(positions)]
        targets += [self._cache.spare_target] * len(spare)
        inputs = torch.tensor([[*token_ids, *spare], [*positions, *spare], targets])
        self._inputs[:, :num_rows] = inputs.to(self._inputs.device)
        shape = (num_rows, num_columns)
        if shape not in self._passes:
            self._passes[shape] = self._recorded(self._pass(*shape))
        return self._passes[shape]()[:count]

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

    def _pass(self, num_rows: int, num_columns: int) -> Pass:
        token_ids, positions, targets = self._inputs[:, :num_rows]

        def run() -> torch.Tensor:
            self._cache.aim_at(targets, num_columns)
            return self._decode(token_ids[:, None], positions[:, None])

        return run


def padded_rows(count: int) -> int:
    """Rows of the pass that decodes `count` rows: the next power of two."""
    return 1 << (count - 1).bit_length()


def cuda_recorder() -> Recorder:
    """Records passes as CUDA graphs, which share their memory as only one runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def record(run: Pass) -> Pass:
        # What libraries allocate at first use must not become part of a graph.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay

    return record
