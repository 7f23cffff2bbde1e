"""Trainings of both sides on the same workloads, and what they say of each other."""

import json
import statistics
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.on_policy.floor import Machine, floor_seconds
from benchmarks.on_policy.settings import BEST, OURS, trl_settings
from benchmarks.on_policy.sides.job import WORKS, Found, Job
from benchmarks.on_policy.workload import PAIRS, Pair, write_workload
from benchmarks.rounds import Spread, ratio, spread
from benchmarks.sft.bench import Side
from benchmarks.sft.sides.job import Precision
from benchmarks.sft.trial import Speed, run

_NUM_ROWS: Final = 256
_TOLERANCE: Final = 1e-3
_LEAST_RATIO: Final = 3.0


@dataclass(frozen=True, slots=True)
class LossReport:
    """The same training by both: TRL samples, and both train on that."""

    figure: str
    """What of each step is compared."""
    num_steps: int
    first: float
    last: float
    largest_difference: float

    @property
    def holds(self) -> bool:
        """Whether it is the same training."""
        return self.largest_difference <= _TOLERANCE

    def line(self) -> str:
        """As printed."""
        return (
            f"{self.figure} of {self.num_steps} steps, {self.first:.4f} to {self.last:.4f}, on the same trajectories "
            f"differ by at most {self.largest_difference:.1e}: {'holds' if self.holds else 'DOES NOT HOLD'}"
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One training."""

    speed: Speed
    """Its tokens are those that were sampled."""
    split: dict[str, float]
    """Seconds of a step, by `WORKS`: the median of those after the first."""
    floor: dict[str, float] = field(default_factory=dict)
    """The least seconds for what was sampled, likewise."""

    @classmethod
    def of(cls, found: Found, pair: Pair, machine: Machine, *, is_scored: bool = True) -> "Turn":
        """What a training of two steps or more found; `is_scored` says whether its teacher had a part."""
        floors = [floor_seconds(pair, step, machine, is_scored=is_scored) for step in found.trajectories[1:]]
        return cls(Speed.of(found.marks), _medians(found.splits()), _medians(floors))


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """Rounds in which both ran, one after the other."""

    workload: str
    precision: Precision
    ours: list[Turn]
    trl: list[Turn]

    def ratio(self, figure: str) -> Spread:
        """Ours over TRL's of a figure of `Speed`."""
        ours, trl = ([getattr(turn.speed, figure) for turn in side] for side in (self.ours, self.trl))
        return ratio(ours, trl)

    @property
    def holds(self) -> bool:
        """Whether a sampled token takes at most a third of TRL's time."""
        return self.ratio("tokens_per_s").median >= _LEAST_RATIO

    def figures(self) -> dict[str, Any]:
        """All of it, for JSON."""
        names = ("tokens_per_s", "tokens_per_cpu_s", "s_per_step", "peak_bytes")
        return {**asdict(self), "ratios": {name: asdict(self.ratio(name)) for name in names}, "holds": self.holds}

    def lines(self) -> list[str]:
        """As printed."""
        ours, trl = (spread([turn.speed.tokens_per_s for turn in side]).median for side in (self.ours, self.trl))
        our_step, trl_step = (spread([turn.speed.s_per_step for turn in side]).median for side in (self.ours, self.trl))
        our_peak, trl_peak = (max(turn.speed.peak_bytes for turn in side) / 2**20 for side in (self.ours, self.trl))
        return [
            f"{self.workload:<12} {self.precision:<8} {our_step:6.2f} s a step, {ours:6,.0f} sampled tokens/s; TRL "
            f"{trl_step:6.2f} s, {trl:6,.0f}; ratio of tokens/s {self.ratio('tokens_per_s')}, of CPU time "
            f"{self.ratio('tokens_per_cpu_s')}; {our_peak:,.0f} MiB, TRL {trl_peak:,.0f}",
            f"    ours {_split(self.ours)}",
            f"    TRL  {_split(self.trl)}",
        ]


class Bench:
    """Both sides.

    Args:
        folder: for workloads and scratch files.
        trl: folder that holds TRL.
        num_threads: of each training.
        group_size: completions of one prompt; with more than one both sides learn from rewards alone, by GRPO.
    """

    def __init__(self, folder: Path, trl: Path, num_threads: int, group_size: int = 1) -> None:
        self._folder = folder
        self._trl = trl
        self._num_threads = num_threads
        self._group_size = group_size
        self._machines: dict[Precision, Machine] = {}

    def losses(self, shape: str, num_steps: int, batch_size: int) -> LossReport:
        """The losses of both in float32 on what TRL samples; where rewards alone teach, the norms of the gradients.

        Advantages of a group add up to nothing, and so does GRPO's loss.
        """
        job = self._job(shape, "float32", num_steps, batch_size)
        trl = self._run("trl", job)
        sampled = self._folder / "sampled.json"
        sampled.write_text(json.dumps(trl.trajectories), encoding="utf-8")
        ours = self._run("ours", replace(job, replay=str(sampled)))
        figure = "losses" if self._group_size == 1 else "gradient_norms"
        our_figures, trl_figures = (getattr(found, figure) for found in (ours, trl))
        differences = [abs(a - b) for a, b in zip(our_figures, trl_figures, strict=True)]
        return LossReport(figure.replace("_", " "), num_steps, our_figures[0], our_figures[-1], max(differences))

    def speeds(
        self, shape: str, precision: Precision, num_steps: int, batch_size: int, num_rounds: int, *, equal: bool = False
    ) -> SpeedReport:
        """Rounds of both in turn, each at the settings that were its fastest in that round."""
        report = SpeedReport(f"{shape}{' equal' if equal else ''}", precision, [], [])
        job = self._job(shape, precision, num_steps, batch_size, equal=equal)
        for _ in range(num_rounds):
            for side, turns, names in (("ours", report.ours, tuple(OURS)), ("trl", report.trl, BEST)):
                tried = [self.turn(side, shape, job, name) for name in names]  # type: ignore[arg-type]
                turns.append(max(tried, key=attrgetter("speed.tokens_per_s")))
        return report

    def trl_turn(self, shape: str, precision: Precision, num_steps: int, batch_size: int, settings: str) -> Turn:
        """TRL at the settings of that name."""
        return self.turn("trl", shape, self._job(shape, precision, num_steps, batch_size), settings)

    def _run(self, side: Side, job: Job) -> Found:
        return run(f"benchmarks.on_policy.sides.{side}", job, Found.read, self._trl)

    def turn(self, side: Side, shape: str, job: Job, settings: str) -> Turn:
        """One training of a side at its settings of that name."""
        own = OURS[settings] if side == "ours" else trl_settings(settings, job.batch_size)
        found = self._run(side, replace(job, settings=own))
        return Turn.of(found, PAIRS[shape], self._machine(job.precision), is_scored=self._group_size == 1)

    def _machine(self, precision: Precision) -> Machine:
        if precision not in self._machines:
            torch.set_num_threads(self._num_threads)
            self._machines[precision] = Machine.measured(precision, torch.device("cpu"))
        return self._machines[precision]

    def _job(self, shape: str, precision: Precision, num_steps: int, batch_size: int, *, equal: bool = False) -> Job:
        """A training on the shape's workload, which is made when it is first needed."""
        folder = self._folder / f"{shape}{'-equal' if equal else ''}"
        if not folder.exists():
            write_workload(folder, PAIRS[shape], _NUM_ROWS, equal=equal)
        scratch = str(self._folder / "scratch")
        return Job(
            str(folder),
            scratch,
            num_steps,
            batch_size,
            self._group_size,
            precision=precision,
            num_threads=self._num_threads,
        )


def _medians(steps: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(step[name] for step in steps) for name in steps[0]}


def _split(turns: list[Turn]) -> str:
    medians = {work: spread([turn.split[work] for turn in turns]).median for work in WORKS}
    return split_words(medians, turns[0].floor)


def split_words(split: dict[str, float], floor: dict[str, float]) -> str:
    """Seconds of each kind of work beside the least possible, as printed."""
    parts = []
    for work in WORKS:
        least = f" (floor {floor[work]:.2f})" if work in floor else ""
        parts.append(f"{work} {split[work]:.2f} s{least}")
    return ", ".join(parts)
