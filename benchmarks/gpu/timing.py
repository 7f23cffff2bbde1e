"""Seconds and memory of work on the device."""

import statistics
import time
from collections.abc import Callable
from typing import Final

import torch

from benchmarks.gpu.bench import Bench

_NUM_WARM_UPS: Final = 2


def median_seconds(work: Callable[[], object], bench: Bench, *, num_rounds: int = 7) -> float:
    """Median wall time of `work` until the device is done, after two calls that warm up."""
    seconds = []
    for round_index in range(_NUM_WARM_UPS + num_rounds):
        bench.synchronize()
        started = time.perf_counter()
        work()
        bench.synchronize()
        if round_index >= _NUM_WARM_UPS:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def peak_gib(work: Callable[[], object], bench: Bench) -> float | None:
    """Most memory that tensors took during `work` beyond what they held before; None on a CPU."""
    if not bench.on_gpu:
        work()
        return None
    bench.synchronize()
    torch.cuda.reset_peak_memory_stats(bench.device)
    before = torch.cuda.memory_allocated(bench.device)
    work()
    bench.synchronize()
    return (torch.cuda.max_memory_allocated(bench.device) - before) / 2**30
