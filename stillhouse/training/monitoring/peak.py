"""How fast a device multiplies matrices, which model FLOPs utilisation is a share of."""

import time
from functools import cache
from typing import Final

import torch

_SIZES: Final = {"cuda": 8192, "cpu": 1024}
_BUDGET_S: Final = 0.3


@cache
def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of the best of a few large square products in `dtype`, measured once in a process.

    Every random generator of the process is left as it was. The factors are drawn, since a GPU multiplies constants
    faster than it multiplies weights.
    """
    size = _SIZES.get(device.type, 1024)
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, device=device, dtype=dtype, generator=generator) for _ in range(2))
    product = left @ right
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    best, ends = float("inf"), time.perf_counter() + _BUDGET_S
    # For a while, since an idle GPU takes some time to reach its clock rate.
    while (started := time.perf_counter()) < ends or best == float("inf"):
        torch.matmul(left, right, out=product)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best
