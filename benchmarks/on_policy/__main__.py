"""The on-policy method beside TRL's `DistillationTrainer` on the CPU: the student samples, the teacher of twice its
width gives its whole distribution, the loss is the exact reverse KL.

    python -m benchmarks.on_policy
    python -m benchmarks.on_policy --sweep     every setting of TRL, once
    python -m benchmarks.on_policy --grpo      rewards alone beside TRL's `GRPOTrainer`: 8 completions of a prompt

Claims
    losses    those of TRL to 1e-3 over 20 updates from the same start on the same trajectories, which TRL samples.
    speed     at most a third of TRL's time for the same number of sampled tokens at the shapes small and middle, TRL at
              its best settings, where completions are log-normally long; no claim where they are equally long.

Measured
    Every prompt says how long its completion is (`workload.py`), log-normally; `equal` workloads have completions of
    one length, where nobody has to pad. Split of a step: sampling; the teacher's layers; training, the teacher's output
    layer included; handing over weights to what samples. Beside it the floor of what this machine can do (`floor.py`).

Learnt
    On one busy core, 16 completions a step, float32, CPU time: 4.5 (4.4..4.6, 2 rounds) times TRL's sampled tokens a
    second at the shape small, with 1.9 GiB; TRL held 9.8 with all rows at once and 3.8 with a quarter of them. At
    middle some 4 times, in bfloat16 5 (one round). On a CPU TRL's output layer takes padding, too: with equally long
    completions, which have none, the ratio is 2.1 (one round).

    On two quiet cores, small, 32 completions a step, one round. In float32: 5.1 s against 25.7 (5.0; of CPU time 4.7),
    2.6 GiB against 6.8; sampling 2.9 s against 10.6 (floor 0.4), scoring 0.5 against 2.5 (0.35), training 1.7 against
    12.6 (1.0). In bfloat16: 3.3 s against 24.7 (7.3), 1.9 GiB against 6.9. Losses of 20 updates differ by 8.9e-8.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.on_policy.bench import Bench
from benchmarks.on_policy.settings import NAMES
from benchmarks.rounds import argument_parser, publish
from benchmarks.sft.peer import TRL, trl_folder
from benchmarks.sft.sides.job import Precision


class Timed(NamedTuple):
    """A comparison of speed."""

    shape: str
    precision: Precision
    num_steps: int
    """The first of them warms up."""
    batch_size: int
    equal: bool = False


_LOSSES: Final = ("narrow", 20, 16)
_QUICK_LOSSES: Final = ("tiny", 3, 8)
_TIMED: Final = (
    Timed("small", "float32", 3, 32),
    Timed("small", "bfloat16", 3, 32),
    Timed("small", "float32", 3, 32, equal=True),
    Timed("middle", "float32", 2, 16),
    Timed("middle", "bfloat16", 2, 16),
)
_GROUP_SIZE: Final = 8
_SHAPES: Final = ("small", "middle")
_QUICK: Final = (Timed("tiny", "float32", 3, 8),)


def compare(bench: Bench, chosen: argparse.Namespace) -> dict[str, Any]:
    """Losses and speeds of both sides, printed as they come."""
    losses = bench.losses(*(_QUICK_LOSSES if chosen.quick else _LOSSES))
    print(losses.line(), flush=True)
    reports = []
    for one in _timed(chosen):
        num_rounds = 1 if chosen.quick else chosen.rounds
        report = bench.speeds(one.shape, one.precision, one.num_steps, one.batch_size, num_rounds, equal=one.equal)
        print("\n".join(report.lines()), flush=True)
        reports.append(report.figures())
    return {"peer": TRL, "losses": asdict(losses), "speeds": reports}


def sweep(bench: Bench, chosen: argparse.Namespace) -> dict[str, Any]:
    """TRL at each of its settings."""
    figures: dict[str, Any] = {"peer": TRL}
    for one in _timed(chosen):
        for name in () if one.equal else NAMES:
            turn = bench.trl_turn(one.shape, one.precision, one.num_steps, one.batch_size, name)
            figures.setdefault(f"{one.shape} {one.precision}", {})[name] = asdict(turn)
            speed = turn.speed
            print(
                f"{one.shape:<7} {one.precision:<8} {name:<13} {speed.tokens_per_s:6,.0f} tokens/s, "
                f"{speed.tokens_per_cpu_s:6,.0f} a CPU second, {speed.peak_bytes / 2**20:7,.0f} MiB",
                flush=True,
            )
    return figures


def _timed(chosen: argparse.Namespace) -> Sequence[Timed]:
    return _QUICK if chosen.quick else [one for one in _TIMED if one.shape in chosen.shapes]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", nargs="+", choices=_SHAPES, default=_SHAPES)
    parser.add_argument("--grpo", action="store_true", help="rewards alone, beside TRL's GRPOTrainer")
    parser.add_argument("--quick", action="store_true", help="tiny models, one round: whether it works, not how well")
    parser.add_argument("--sweep", action="store_true", help="time TRL at each of its settings, and end")
    parser.add_argument("--peer", type=Path, default=Path("runs/bench/venvs/trl"), metavar="FOLDER", help="of TRL")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            Path(folder), trl_folder(chosen.peer.absolute()), chosen.threads, _GROUP_SIZE if chosen.grpo else 1
        )
        figures = sweep(bench, chosen) if chosen.sweep else compare(bench, chosen)
    publish([], figures, chosen.json)


if __name__ == "__main__":
    main()
