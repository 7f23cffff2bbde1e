"""Process-wide state of torch and the random generators: made repeatable, saved and restored."""

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from torch.utils import deterministic
from transformers.utils import logging as transformers_logging

from stillhouse.types import JsonObject

_PROBE_SIZE: Final = 256
_TOLERANCE: Final = 1e-5
"""Relative to the largest entry; products in float32 differ by some 1e-6, in bfloat16 by some 1e-3."""


def make_repeatable(seed: int, num_threads: int | None, device: torch.device) -> None:
    """Set seeds and threads; on the CPU two runs of the same job then give the same bits."""
    torch.manual_seed(seed)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if device.type == "cpu":
        use_fast_float32_products()
        torch.use_deterministic_algorithms(True)
        # It only guards against reading uninitialised memory, at the price of writing all of it.
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def torch_restored() -> Iterator[None]:
    """Restore torch's settings and all random generators, and free its memory, when the block ends."""
    threads = torch.get_num_threads()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    generators = random_state()
    has_bars = transformers_logging.is_progress_bar_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
        deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        torch.backends.mkldnn.matmul.fp32_precision = precision  # type: ignore[attr-defined]
        restore_random_state(generators)
        if has_bars:
            transformers_logging.enable_progress_bar()
        gc.collect()
        torch.cuda.empty_cache()


def random_state() -> JsonObject:
    """Return the state of torch's, Python's and numpy's generators, and of the current CUDA device, as plain JSON."""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    key = numpy_state["state"]["key"].tolist()
    return {
        "torch": _to_hex(torch.get_rng_state()),
        "cuda": _to_hex(torch.cuda.get_rng_state()) if torch.cuda.is_initialized() else None,
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": key}},
    }


def restore_random_state(state: JsonObject) -> None:
    """Restore every generator to a `random_state`."""
    torch.set_rng_state(_from_hex(state["torch"]))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_from_hex(state["cuda"]))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy_state = state["numpy"]
    key = np.array(numpy_state["state"]["key"], dtype=np.uint32)
    np.random.set_state({**numpy_state, "state": {**numpy_state["state"], "key": key}})


def restore_random_state_of_rank(states: Sequence[JsonObject], rank: int) -> None:
    """Restore the generators of `rank` from the states that all ranks saved.

    A rank that did not exist then gets a state derived from the first rank's: training continues with more or fewer
    ranks, though not bit for bit.
    """
    restore_random_state(states[rank] if rank < len(states) else states[0])
    if rank >= len(states):
        seed = int(torch.randint(2**31, ()).item()) + rank
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)


def use_fast_float32_products() -> bool:
    """Route float32 products on the CPU through oneDNN where it computes them in full; return if it does.

    MKL's kernels for processors of other makers than Intel use half of an AVX-512 unit, and torch hands products to
    oneDNN only where it may compute with fewer digits. Without hardware for that (AMX, or the like on Arm) it computes
    in float32 all the same: 0.6 of the CPU time of training Qwen3 models of width 256 and 512 on an AMD EPYC.
    """
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    left, right = torch.randn(2, _PROBE_SIZE, _PROBE_SIZE, generator=torch.Generator().manual_seed(0))
    exact = left.double() @ right.double()
    is_exact = bool((left @ right - exact).abs().max() < _TOLERANCE * exact.abs().max())
    if not is_exact:
        matmul.fp32_precision = before
    return is_exact


def _to_hex(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _from_hex(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
