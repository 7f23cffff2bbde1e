"""Trainings of both sides on the same workloads, and what they say of each other."""

from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.rounds import Spread, ratio, spread
from benchmarks.sft.settings import BEST, OURS, PLAIN, trl_settings
from benchmarks.sft.sides.job import Found, Job, Precision
from benchmarks.sft.trial import Speed, run
from benchmarks.sft.workload import SHAPES, write_workload

Side = Literal["ours", "trl"]

_BATCH_SIZE: Final = 8
_NUM_ROWS: Final = 512
_TOLERANCE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class LossReport:
    """The same training by both."""

    num_steps: int
    first: float
    last: float
    largest_difference: float
    same_rows: bool
    """Whether token ids and masks were the same, row by row."""

    @property
    def holds(self) -> bool:
        """Whether it is the same training."""
        return self.same_rows and self.largest_difference <= _TOLERANCE

    def line(self) -> str:
        """As printed."""
        return (
            f"losses of {self.num_steps} steps, {self.first:.4f} to {self.last:.4f}, on "
            f"{'the same' if self.same_rows else 'OTHER'} rows differ by at most {self.largest_difference:.1e}: "
            f"{'holds' if self.holds else 'DOES NOT HOLD'}"
        )


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """Rounds in which both ran, one after the other."""

    shape: str
    precision: Precision
    ours: list[Speed]
    trl: list[Speed]

    def ratio(self, figure: str) -> Spread:
        """Ours over TRL's of a figure of `Speed`."""
        return ratio([getattr(one, figure) for one in self.ours], [getattr(one, figure) for one in self.trl])

    def figures(self) -> dict[str, Any]:
        """All of it, for JSON."""
        names = ("tokens_per_s", "tokens_per_cpu_s", "peak_bytes")
        return {**asdict(self), "ratios": {name: asdict(self.ratio(name)) for name in names}}

    def line(self) -> str:
        """As printed."""
        ours, trl = (spread([one.tokens_per_s for one in side]).median for side in (self.ours, self.trl))
        our_peak, trl_peak = (max(one.peak_bytes for one in side) / 2**20 for side in (self.ours, self.trl))
        return (
            f"{self.shape:<7} {self.precision:<8} {ours:7,.0f} tokens/s, TRL {trl:6,.0f}, ratio "
            f"{self.ratio('tokens_per_s')}, of CPU time {self.ratio('tokens_per_cpu_s')}; "
            f"{our_peak:,.0f} MiB, TRL {trl_peak:,.0f}"
        )


class Bench:
    """Both sides.

    Args:
        folder: for workloads and scratch files.
        trl: folder that holds TRL.
        num_threads: of each training.
    """

    def __init__(self, folder: Path, trl: Path, num_threads: int) -> None:
        self._folder = folder
        self._trl = trl
        self._num_threads = num_threads

    def losses(self, shape: str, num_steps: int) -> LossReport:
        """The losses of both in float32, TRL accumulating row by row."""
        job = replace(self._job(shape, "float32", num_steps), with_losses=True)
        ours = self._run("ours", job)
        trl = self._run("trl", replace(job, settings=trl_settings(PLAIN, _BATCH_SIZE)))
        differences = [abs(a - b) for a, b in zip(ours.losses, trl.losses, strict=True)]
        return LossReport(num_steps, ours.losses[0], ours.losses[-1], max(differences), ours.rows == trl.rows)

    def speeds(self, shape: str, precision: Precision, num_steps: int, num_rounds: int) -> SpeedReport:
        """Rounds of both in turn, each at the settings that were its fastest in that round."""
        report = SpeedReport(shape, precision, [], [])
        for _ in range(num_rounds):
            ours = [self.our_speed(shape, precision, num_steps, name) for name in OURS]
            trl = [self.trl_speed(shape, precision, num_steps, name) for name in BEST]
            report.ours.append(max(ours, key=attrgetter("tokens_per_s")))
            report.trl.append(max(trl, key=attrgetter("tokens_per_s")))
        return report

    def our_speed(self, shape: str, precision: Precision, num_steps: int, settings: str) -> Speed:
        """This project's speed at the settings of that name."""
        job = replace(self._job(shape, precision, num_steps), settings=OURS[settings])
        return Speed.of(self._run("ours", job).marks)

    def trl_speed(self, shape: str, precision: Precision, num_steps: int, settings: str) -> Speed:
        """TRL's speed at the settings of that name."""
        job = self._job(shape, precision, num_steps)
        return Speed.of(self._run("trl", replace(job, settings=trl_settings(settings, _BATCH_SIZE))).marks)

    def _run(self, side: Side, job: Job) -> Found:
        return run(f"benchmarks.sft.sides.{side}", job, Found.read, self._trl)

    def _job(self, shape: str, precision: Precision, num_steps: int) -> Job:
        """A training on the shape's workload, which is made when it is first needed."""
        folder = self._folder / shape
        if not folder.exists():
            write_workload(folder, SHAPES[shape], _NUM_ROWS)
        scratch = str(self._folder / "scratch")
        return Job(str(folder), scratch, num_steps, _BATCH_SIZE, precision, num_threads=self._num_threads)
