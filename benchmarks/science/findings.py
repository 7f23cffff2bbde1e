"""What experiments find: curves and figures of each seed, and what claims come to over all of them."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.frame.rounds import Spread, spread
from benchmarks.science.lab import CHAIN, Lab
from benchmarks.science.training import Course
from stillhouse.store.atomic import write_atomic


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One measurement of one training."""

    step: int
    accuracy: float
    tokens: float
    """With a loss, so far."""
    flops: float
    """So far, teacher included."""
    seconds: float = 0.0
    """So far."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What it took to get somewhere; infinite where it was not reached."""

    steps: float
    tokens: float
    flops: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One training, measured from start to end."""

    points: list[CurvePoint]

    @classmethod
    def of(cls, course: Course, exam: str = CHAIN) -> Self:
        """The course by one of its exams."""
        return cls(
            [
                CurvePoint(point.step, point.accuracies[exam], costs.targets, costs.flops, costs.seconds)
                for point in course.points
                for costs in [point.costs]
            ]
        )

    @property
    def final(self) -> float:
        """Accuracy at the end."""
        return self.points[-1].accuracy

    def reached(self, accuracy: float) -> Reached:
        """What had been used when the accuracy was first measured to be so high."""
        for point in self.points:
            if point.accuracy >= accuracy:
                return Reached(point.step, point.tokens, point.flops, point.seconds)
        return Reached(math.inf, math.inf, math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Result of one experiment with one seed."""

    seed: int
    curves: dict[str, Curve]
    """By what was done."""
    figures: dict[str, float] = field(default_factory=dict)
    """What the claims are about, and more to look at."""
    target: float | None = None
    """The accuracy that trainings were to reach; None where none was."""

    def write(self, path: Path) -> None:
        """Writes it, whole or not at all."""
        write_atomic(path, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote."""
        stored: dict[str, Any] = json.loads(path.read_bytes())
        curves = {
            name: Curve([CurvePoint(**point) for point in curve["points"]])
            for name, curve in stored.pop("curves").items()
        }
        return cls(curves=curves, **stored)


@dataclass(frozen=True, slots=True)
class Claim:
    """What the field says, as a bound on a figure."""

    text: str
    figure: str
    bound: float
    is_upper: bool = False
    """The figure is at most the bound, instead of at least."""

    def holds(self, value: float) -> bool:
        """Whether a figure is within the bound."""
        return value <= self.bound if self.is_upper else value >= self.bound


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a claim."""

    claim: Claim
    measured: Spread
    num_holding: int
    """Seeds for which it holds."""

    @property
    def word(self) -> str:
        """In short: by the median, unless seeds disagree."""
        if self.num_holding == self.measured.num_rounds:
            return "holds"
        if self.num_holding == 0:
            return "does not hold"
        return "holds by the median" if self.claim.holds(self.measured.median) else "does not hold by the median"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One question and how it is put to the small models."""

    name: str
    title: str
    setup: str
    """What is done, in a few sentences."""
    claims: tuple[Claim, ...]
    run: Callable[[Lab, int], SeedResult]
    curves_over: str | None = None
    """`step`, `tokens`, `flops` or `seconds`: accuracy is drawn over it; None draws the last accuracies alone."""
    notes: str = ""
    """What the figures do not say by themselves."""

    def verdicts(self, results: Sequence[SeedResult]) -> list[Verdict]:
        """Of all claims over all seeds."""
        return [
            Verdict(claim, spread(values), sum(map(claim.holds, values)))
            for claim in self.claims
            for values in [[result.figures[claim.figure] for result in results]]
        ]


def times(above: float, below: float) -> float:
    """How many times as much; 0 where the divisor was never reached, infinite where it took nothing at all."""
    if math.isinf(below):
        return 0.0
    return above / below if below else math.inf


def figures_of(results: Sequence[SeedResult]) -> Mapping[str, Spread]:
    """Each figure over the seeds."""
    return {name: spread([result.figures[name] for result in results]) for name in results[0].figures}
