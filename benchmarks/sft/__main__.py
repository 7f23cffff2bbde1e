"""The trainer beside TRL's `SFTTrainer` on conversations of very different lengths, on the CPU.

    python -m benchmarks.sft
    python -m benchmarks.sft --sweep     every setting of TRL, once

Claims
    losses    those of TRL to 1e-3 over 50 steps from the same start, in the same order, with the same hyperparameters.
    speed     at least 2.5 times TRL's tokens a second at the shapes small and middle, each at its best settings.

Measured
    Tokens a second, ours and TRL's, their ratio, and our peak memory over TRL's, on two quiet cores with AVX-512:
        small   float32   5,083   1,293   3.93   0.61        bfloat16   6,128   1,732   3.54   0.50
        middle  float32   1,372     453   3.03   1.02        bfloat16   1,905     712   2.67   0.76
    The large shape came to 499 against 287 (1.74) in bfloat16 without compiled blocks. Losses of 50 steps differ by
    1.4e-6.

Learnt
    Matrix products bound the gain: in bfloat16 they take 59 % of our time at the middle shape, and TRL reaches 29 % of
    the processor's speed at the large one, so that nobody could be 3.5 times as fast there. What is left beside them is
    memory: casts of weights by autocast, the norms and the rotary embedding, and the embedding's dense gradient.
    TRL is fastest with one row a pass, since its loss makes all logits of a pass at once; compiled it gains 10 to 30 %
    in bfloat16 and little in float32, ours 6 to 19 %. Huge pages (`glibc.malloc.hugetlb=1`) would give 10 % more.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.rounds import argument_parser, publish
from benchmarks.sft.bench import Bench
from benchmarks.sft.peer import TRL, trl_folder
from benchmarks.sft.settings import NAMES
from benchmarks.sft.sides.job import Precision

_NUM_LOSSES: Final = 50
_NUM_QUICK_LOSSES: Final = 5
_TIMED: Final[dict[tuple[str, Precision], int]] = {
    ("small", "float32"): 5,
    ("small", "bfloat16"): 5,
    ("middle", "float32"): 3,
    ("middle", "bfloat16"): 4,
    ("large", "bfloat16"): 2,
}
"""Shapes and types of computation, and the steps of one training."""
_SHAPES: Final = ("small", "middle", "large")
_QUICK: Final[dict[tuple[str, Precision], int]] = {("tiny", "float32"): 3}


def compare(bench: Bench, chosen: argparse.Namespace) -> dict[str, Any]:
    """Losses and speeds of both sides, printed as they come."""
    losses = bench.losses("tiny", _NUM_QUICK_LOSSES) if chosen.quick else bench.losses("narrow", _NUM_LOSSES)
    print(losses.line(), flush=True)
    reports = []
    for (shape, precision), num_steps in _timed(chosen).items():
        reports.append(bench.speeds(shape, precision, num_steps, 1 if chosen.quick else chosen.rounds))
        print(reports[-1].line(), flush=True)
    return {"peer": TRL, "losses": asdict(losses), "speeds": [report.figures() for report in reports]}


def sweep(bench: Bench, chosen: argparse.Namespace) -> dict[str, Any]:
    """TRL's speed at each of its settings, printed as they come."""
    figures: dict[str, Any] = {"peer": TRL}
    for (shape, precision), num_steps in _timed(chosen).items():
        found = {name: bench.trl_speed(shape, precision, num_steps, name) for name in NAMES}
        figures[f"{shape} {precision}"] = {name: asdict(speed) for name, speed in found.items()}
    return figures


def _timed(chosen: argparse.Namespace) -> dict[tuple[str, Precision], int]:
    every = _QUICK if chosen.quick else _TIMED
    return {pair: num_steps for pair, num_steps in every.items() if chosen.quick or pair[0] in chosen.shapes}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", nargs="+", choices=_SHAPES, default=_SHAPES)
    parser.add_argument("--quick", action="store_true", help="tiny models, one round: whether it works, not how well")
    parser.add_argument("--sweep", action="store_true", help="time TRL at each of its settings, and end")
    parser.add_argument("--peer", type=Path, default=Path("runs/bench/venvs/trl"), metavar="FOLDER", help="of TRL")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), trl_folder(chosen.peer.absolute()), chosen.threads)
        figures = sweep(bench, chosen) if chosen.sweep else compare(bench, chosen)
    publish([], figures, chosen.json)


if __name__ == "__main__":
    main()
