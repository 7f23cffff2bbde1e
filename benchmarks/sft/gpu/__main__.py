"""The trainer and TRL's `SFTTrainer` in turn on one GPU, at the shapes of Qwen3 with random weights.

    python -m benchmarks.sft.gpu --json FILE

Claims
    losses    of both differ by at most 1e-3 at every step, on the same rows in bfloat16.
    use       at least half of what the device can do at 1.7B, with rows packed to some 16,000 tokens a step.

Measured
    0.6B and 1.7B with all weights in float32 and computation in bfloat16, 8B with an adapter of rank 32 over weights in
    bfloat16. Each training is a process of its own, sides in turn; three steps warm up, eight are timed. MFU counts
    what the model asks for, nothing twice and the output layer at learnt tokens only, over the speed of large matrix
    products, measured before. TRL gets rows sorted by length and no gradient checkpointing; it packs as well. All ends
    within the budget: what comes too late or cannot be had (TRL is not there, memory) is left out, and why is said.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.rounds import argument_parser, publish
from benchmarks.sft.gpu.plan import SIZES, GpuFound, GpuJob
from benchmarks.sft.gpu.side_process import run_side

_TOLERANCE: Final = 1e-3
_BUDGET_S: Final = 500.0
_LEAST_S: Final = {"plain": 15.0, "packed": 15.0, "compiled": 60.0}
"""With less time left than this a training is not begun."""


def planned(sizes: Sequence[str], device: str, num_rounds: int) -> Iterator[GpuJob]:
    """Trainings in the order of their worth: both sides in turn, then what else each of them can do."""
    for size in sizes:
        for _ in range(num_rounds):
            yield GpuJob(size, "ours", "plain", device)
            yield GpuJob(size, "trl", "plain", device)
    for variant in ("compiled", "packed"):
        for size in sizes:
            yield GpuJob(size, "ours" if variant == "compiled" else "trl", variant, device)


def measure(jobs: Iterator[GpuJob], budget_s: float) -> tuple[dict[str, list[GpuFound]], dict[str, str]]:
    """What each training found, by its name, and why others found nothing; printed as they end."""
    found: dict[str, list[GpuFound]] = {}
    left_out: dict[str, str] = {}
    ends = time.monotonic() + budget_s
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs:
            left_s = ends - time.monotonic()
            if job.name in left_out:
                continue
            try:
                if left_s < _LEAST_S[job.variant]:
                    raise RuntimeError(f"{left_s:.0f} s were left of the budget")
                one = GpuFound.read(run_side("benchmarks.sft.gpu.side", job, Path(folder), left_s))
            except RuntimeError as error:
                left_out[job.name] = str(error)
                print(f"{job.name:<20} left out: {error}", flush=True)
                continue
            found.setdefault(job.name, []).append(one)
            print(line(job.name, one), flush=True)
    return found, left_out


def line(name: str, found: GpuFound) -> str:
    """As printed."""
    return (
        f"{name:<20} {found.tokens_per_s:>9,.0f} tokens/s  {found.s_per_step:7.3f} s/step  MFU {found.mfu:.1%} of "
        f"{found.peak_tflops:,.1f} TFLOP/s  {found.peak_memory_gib:6.1f} GiB  loss {found.losses[0]:.4f}"
    )


def loss_differences(found: dict[str, list[GpuFound]], sizes: Sequence[str]) -> dict[str, float]:
    """The largest difference of both sides' losses at one step, for each size that both have trained."""
    names = {size: [f"{size} {side} plain" for side in ("ours", "trl")] for size in sizes}
    return {
        size: max(abs(a - b) for a, b in zip(found[ours][0].losses, found[trl][0].losses, strict=True))
        for size, (ours, trl) in names.items()
        if ours in found and trl in found
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser: argparse.ArgumentParser = argument_parser(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["1.7B", "0.6B", "8B"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget-s", type=float, default=_BUDGET_S)
    chosen = parser.parse_args(arguments)
    jobs = planned(chosen.sizes, chosen.device, chosen.rounds)
    found, left_out = measure(jobs, chosen.budget_s)
    differences = loss_differences(found, chosen.sizes)
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if chosen.device == "cuda" else chosen.device,
        "runs": {name: [asdict(one) for one in several] for name, several in found.items()},
        "left_out": left_out,
        "loss_differences": {
            size: {"largest": difference, "holds": difference <= _TOLERANCE} for size, difference in differences.items()
        },
    }
    publish([json.dumps(figures, indent=1)], figures, chosen.json)


if __name__ == "__main__":
    main()
