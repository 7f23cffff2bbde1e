"""On-policy distillation by this project's trainer and by TRL in turn on one GPU, at the shapes of Qwen3 with random
weights: 0.6B from 1.7B with all weights trained, 1.7B from 8B with an adapter of rank 32.

    python -m benchmarks.on_policy.gpu --json FILE
    python -m benchmarks.on_policy.gpu --device cpu --sizes tiny tiny-lora

Claims
    losses    on the same trajectories both differ by at most 1e-3 at every step, in bfloat16.
    speed     at most a third of TRL's time for the same number of sampled tokens.

Measured
    128 completions a step, log-normally long (256 tokens in the middle, at most 1,024), after prompts of some 128
    tokens; weights in float32 where all are trained, the rest in bfloat16. Each training is a process of its own; one
    step warms up, two are timed. Split of a step beside the floor of `floor.py` for what the device was measured to do.
    All ends within the budget: what comes too late or cannot be had (TRL is not there, memory) is left out, and why is
    said.
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

from benchmarks.on_policy.bench import split_words
from benchmarks.on_policy.gpu.plan import SIZES, GpuFound, GpuJob
from benchmarks.rounds import argument_parser, publish
from benchmarks.sft.gpu.side_process import run_side

_TOLERANCE: Final = 1e-3
_BUDGET_S: Final = 500.0
_LEAST_S: Final = 30.0
"""With less time left than this a training is not begun."""


def planned(sizes: Sequence[str], device: str) -> Iterator[GpuJob]:
    """Trainings in the order of their worth; what TRL sampled is replayed right after it."""
    for size in sizes:
        yield GpuJob(size, "ours", device)
        yield GpuJob(size, "trl", device)
        yield GpuJob(size, "replay", device)


def measure(jobs: Iterator[GpuJob], budget_s: float) -> tuple[dict[str, GpuFound], dict[str, str]]:
    """What each training found, by its name, and why others found nothing; printed as they end."""
    found: dict[str, GpuFound] = {}
    left_out: dict[str, str] = {}
    ends = time.monotonic() + budget_s
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs:
            left_s = ends - time.monotonic()
            try:
                if job.side == "replay" and f"{job.size} trl" not in found:
                    raise RuntimeError("TRL has sampled nothing to replay")
                if left_s < _LEAST_S:
                    raise RuntimeError(f"{left_s:.0f} s were left of the budget")
                found[job.name] = GpuFound.read(run_side("benchmarks.on_policy.gpu.side", job, Path(folder), left_s))
                print(line(job.name, found[job.name]), flush=True)
            except RuntimeError as error:
                left_out[job.name] = str(error)
                print(f"{job.name:<16} left out: {error}", flush=True)
    return found, left_out


def line(name: str, found: GpuFound) -> str:
    """As printed."""
    return (
        f"{name:<16} {found.s_per_step:7.2f} s/step  {found.tokens_per_s:>8,.0f} sampled tokens/s  "
        f"{found.peak_memory_gib:6.1f} GiB  loss {found.losses[0]:.4f}  {split_words(found.split, found.floor)}"
    )


def comparisons(found: dict[str, GpuFound], sizes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What both sides say of each other, for each size that both have trained."""
    compared: dict[str, dict[str, Any]] = {}
    for size in sizes:
        ours, trl, replay = (found.get(f"{size} {side}") for side in ("ours", "trl", "replay"))
        if ours is not None and trl is not None:
            compared[size] = {"tokens_per_s_ratio": ours.tokens_per_s / trl.tokens_per_s}
        if trl is not None and replay is not None:
            largest = max(abs(a - b) for a, b in zip(replay.losses, trl.losses, strict=True))
            compared[size] |= {"loss_difference": largest, "losses_hold": largest <= _TOLERANCE}
    return compared


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser: argparse.ArgumentParser = argument_parser(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["0.6B", "1.7B"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget-s", type=float, default=_BUDGET_S)
    chosen = parser.parse_args(arguments)
    found, left_out = measure(planned(chosen.sizes, chosen.device), chosen.budget_s)
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if chosen.device == "cuda" else chosen.device,
        "runs": {name: asdict(one) for name, one in found.items()},
        "left_out": left_out,
        "compared": comparisons(found, chosen.sizes),
    }
    publish([json.dumps(figures["compared"], indent=1)], figures, chosen.json)


if __name__ == "__main__":
    main()
