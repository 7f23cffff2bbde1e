"""A method's benchmark against TRL: the same losses on the same data, then speeds, sides taking turns."""

import argparse
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from benchmarks.frame.peers import TRL, trl_folder
from benchmarks.frame.rounds import Spread, argument_parser, publish, ratio, spread
from benchmarks.frame.training import Precision, Speed, TrainingJob, TrainingRecord, run_side

Side = Literal["ours", "trl"]
Settings = Mapping[str, Any]

_TOLERANCE: Final = 1e-3
_FIGURES: Final = ("tokens_per_s", "tokens_per_cpu_s", "s_per_step", "peak_bytes")


class Workload(NamedTuple):
    """Trainings of which speeds are compared."""

    shape: str
    precision: Precision
    num_steps: int
    """The first of them warms up."""
    batch_size: int = 8
    equal: bool = False
    """All completions have one length, where nobody has to pad."""

    def __str__(self) -> str:
        return f"{self.shape}{' equal' if self.equal else ''}"


@dataclass(frozen=True, slots=True)
class LossReport:
    """The same training by both sides."""

    figure: str
    """What is compared of each step."""
    num_steps: int
    first: float
    last: float
    largest_difference: float
    same_data: bool = True
    """Whether both trained on the same tokens and masks."""

    @classmethod
    def of(cls, figure: str, ours: Sequence[float], trl: Sequence[float], *, same_data: bool = True) -> "LossReport":
        """Compares a figure step by step."""
        difference = max(abs(a - b) for a, b in zip(ours, trl, strict=True))
        return cls(figure, len(ours), ours[0], ours[-1], difference, same_data)

    @property
    def holds(self) -> bool:
        """Whether it is the same training."""
        return self.same_data and self.largest_difference <= _TOLERANCE

    def line(self) -> str:
        """As printed."""
        return (
            f"{self.figure} of {self.num_steps} steps, {self.first:.4f} to {self.last:.4f}, on "
            f"{'the same' if self.same_data else 'OTHER'} data differ by at most {self.largest_difference:.1e}: "
            f"{'holds' if self.holds else 'DOES NOT HOLD'}"
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One timed training."""

    speed: Speed
    split: dict[str, float] = field(default_factory=dict)
    """Median seconds of a step by kind of work, where the method tells kinds apart."""
    floor: dict[str, float] = field(default_factory=dict)
    """Least possible seconds, likewise."""

    def split_line(self) -> str:
        """Seconds of each kind of work and the least possible, as printed."""
        return ", ".join(
            f"{work} {seconds:.2f} s" + (f" (floor {self.floor[work]:.2f})" if work in self.floor else "")
            for work, seconds in self.split.items()
        )


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """Rounds in which both sides ran, one after the other."""

    workload: str
    precision: Precision
    ours: list[Turn]
    trl: list[Turn]
    least_ratio: float
    """Least ratio of tokens a second at which the benchmark's claim holds."""

    def ratio(self, figure: str) -> Spread:
        """Ours over TRL's of a figure of `Speed`."""
        ours, trl = ([getattr(turn.speed, figure) for turn in side] for side in (self.ours, self.trl))
        return ratio(ours, trl)

    @property
    def holds(self) -> bool:
        """Whether the median round meets the claim."""
        return self.ratio("tokens_per_s").median >= self.least_ratio

    def figures(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "ratios": {name: asdict(self.ratio(name)) for name in _FIGURES}, "holds": self.holds}

    def lines(self) -> list[str]:
        """As printed."""
        ours, trl = (spread([turn.speed.tokens_per_s for turn in side]).median for side in (self.ours, self.trl))
        our_step, trl_step = (spread([turn.speed.s_per_step for turn in side]).median for side in (self.ours, self.trl))
        our_peak, trl_peak = (max(turn.speed.peak_bytes for turn in side) / 2**20 for side in (self.ours, self.trl))
        line = (
            f"{self.workload:<12} {self.precision:<8} {our_step:6.2f} s a step, {ours:6,.0f} tokens/s; TRL "
            f"{trl_step:6.2f} s, {trl:6,.0f}; ratio of tokens/s {self.ratio('tokens_per_s')}, of CPU time "
            f"{self.ratio('tokens_per_cpu_s')}; {our_peak:,.0f} MiB, TRL {trl_peak:,.0f}"
        )
        splits = (("ours", self.ours[-1]), ("TRL ", self.trl[-1]))
        return [line, *(f"    {name} {turn.split_line()}" for name, turn in splits if turn.split)]


JobT = TypeVar("JobT", bound=TrainingJob)
RecordT = TypeVar("RecordT", bound=TrainingRecord)


class Bench(ABC, Generic[JobT, RecordT]):
    """Trainings of both sides on the same workloads.

    Args:
        folder: for workloads and scratch files.
        trl: folder that holds TRL.
        num_threads: of each training.
    """

    sides: str
    """Package of the modules `ours` and `trl`."""
    record: type[RecordT]
    our_settings: Mapping[str, Settings]
    """Settings of this project worth trying, by name."""
    best_trl_settings: Sequence[str]
    """Names of TRL's settings that lead somewhere."""
    all_trl_settings: Sequence[str]
    least_ratio: float

    def __init__(self, folder: Path, trl: Path, num_threads: int) -> None:
        self.folder = folder
        self.trl = trl
        self.num_threads = num_threads

    @abstractmethod
    def job(self, workload: Workload) -> JobT:
        """A training on the workload, whose files are written when they are first needed."""

    @abstractmethod
    def losses(self, workload: Workload) -> LossReport:
        """The same training by both sides."""

    @abstractmethod
    def trl_settings(self, name: str, batch_size: int) -> dict[str, Any]:
        """TRL's arguments of that name."""

    def measured(self, workload: Workload, record: RecordT) -> Turn:
        """A training's figures."""
        return Turn(Speed.of(record.marks))

    def run(self, side: Side, job: JobT) -> RecordT:
        """One training in a process of its own."""
        return run_side(f"{self.sides}.{side}", job, self.record, self.trl)

    def turn(self, side: Side, workload: Workload, name: str) -> Turn:
        """One timed training of a side with its settings of that name."""
        settings = self.our_settings[name] if side == "ours" else self.trl_settings(name, workload.batch_size)
        return self.measured(workload, self.run(side, replace(self.job(workload), settings=dict(settings))))

    def speeds(self, workload: Workload, num_rounds: int) -> SpeedReport:
        """Rounds of both sides in turn, each with the settings that were its fastest in that round."""
        report = SpeedReport(str(workload), workload.precision, [], [], self.least_ratio)
        sides: tuple[tuple[Side, list[Turn], Sequence[str]], ...] = (
            ("ours", report.ours, tuple(self.our_settings)),
            ("trl", report.trl, self.best_trl_settings),
        )
        for _ in range(num_rounds):
            for side, turns, names in sides:
                tried = [self.turn(side, workload, name) for name in names]
                turns.append(max(tried, key=attrgetter("speed.tokens_per_s")))
        return report


@dataclass(frozen=True, slots=True)
class Command:
    """The command of a benchmark."""

    description: str | None
    """The module's docstring, which is the help."""
    make: Callable[[Path, Path, argparse.Namespace], Bench[Any, Any]]
    """From a scratch folder, TRL's folder and the options to the benchmark."""
    losses: Workload
    quick_losses: Workload
    speeds: Sequence[Workload]
    quick_speeds: Workload
    flags: Mapping[str, str] = field(default_factory=dict)
    """Further flags and their help."""

    def __call__(self, arguments: Sequence[str] | None = None) -> None:
        """Runs the command."""
        shapes = tuple(dict.fromkeys(workload.shape for workload in self.speeds))
        parser = argument_parser(self.description)
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--threads", type=int, default=2)
        parser.add_argument("--shapes", nargs="+", choices=shapes, default=shapes)
        for flag, explanation in self.flags.items():
            parser.add_argument(flag, action="store_true", help=explanation)
        parser.add_argument("--quick", action="store_true", help="tiny models, one round: does it work, not how well")
        parser.add_argument("--sweep", action="store_true", help="time TRL with each of its settings, and end")
        parser.add_argument("--peer", type=Path, default=Path("runs/bench/venvs/trl"), metavar="FOLDER", help="of TRL")
        options = parser.parse_args(arguments)
        with tempfile.TemporaryDirectory() as folder:
            bench = self.make(Path(folder), trl_folder(options.peer.absolute()), options)
            figures = self._sweep(bench, options) if options.sweep else self._compare(bench, options)
        publish([], figures, options.json)

    def _compare(self, bench: Bench[Any, Any], options: argparse.Namespace) -> dict[str, Any]:
        losses = bench.losses(self.quick_losses if options.quick else self.losses)
        print(losses.line(), flush=True)
        speeds = []
        for workload in self._workloads(options):
            report = bench.speeds(workload, 1 if options.quick else options.rounds)
            print("\n".join(report.lines()), flush=True)
            speeds.append(report.figures())
        return {"peer": TRL, "losses": {**asdict(losses), "holds": losses.holds}, "speeds": speeds}

    def _sweep(self, bench: Bench[Any, Any], options: argparse.Namespace) -> dict[str, Any]:
        figures: dict[str, Any] = {"peer": TRL}
        for workload in self._workloads(options):
            for name in () if workload.equal else bench.all_trl_settings:
                turn = bench.turn("trl", workload, name)
                figures.setdefault(f"{workload} {workload.precision}", {})[name] = asdict(turn)
                print(
                    f"{workload!s:<12} {workload.precision:<8} {name:<13} {turn.speed.tokens_per_s:6,.0f} tokens/s, "
                    f"{turn.speed.tokens_per_cpu_s:6,.0f} a CPU second, {turn.speed.peak_bytes / 2**20:7,.0f} MiB",
                    flush=True,
                )
        return figures

    def _workloads(self, options: argparse.Namespace) -> Sequence[Workload]:
        if options.quick:
            return [self.quick_speeds]
        return [workload for workload in self.speeds if workload.shape in options.shapes]
