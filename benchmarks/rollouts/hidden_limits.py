"""The parts of `acceptance` about limits that a client has to find: each kind of them, held, halved and doubled."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.rollouts.convergence import Convergence
from benchmarks.rollouts.measure import Effort, endure
from tests.provider.limits import Limits, Step

_HIDDEN: Final = {
    "RPM": Limits(requests_per_minute=1200),
    "TPM": Limits(tokens_per_minute=120_000),
    "concurrency": Limits(concurrency=32),
}


def limits(effort: Effort, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Share of each kind of hidden limit, with and without headers."""
    lines, figures = [], {}
    for kind, hidden in _HIDDEN.items():
        for headers in (True, False):
            if headers and kind == "concurrency":
                # No provider tells of it in headers; Retry-After alone is what there is.
                name = f"{kind}, Retry-After"
            else:
                name = f"{kind}, {'headers' if headers else 'no headers'}"
            steps = (Step(at_s=0, limits=hidden),)
            (trial,) = endure(
                steps, headers=headers, settle_s=effort.settle_s, duration_s=effort.duration_s, folder=folder
            )
            lines.append(f"limits, {name}: {_in_words(trial)}")
            figures[name] = asdict(trial)
    return lines, figures


def steps(effort: Effort, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Each kind of limit halved and doubled again."""
    lines, figures = [], {}
    for kind, hidden in _HIDDEN.items():
        half = Limits.model_validate(
            {name: value / 2 for name, value in hidden.model_dump(exclude_defaults=True).items()}
        )
        third = effort.duration_s * 2 / 3
        course = tuple(Step(at_s=third * index, limits=one) for index, one in enumerate((hidden, half, hidden)))
        convergences = endure(course, headers=False, settle_s=effort.settle_s, duration_s=3 * third, folder=folder)
        for name, one in zip(("first", "halved", "doubled"), convergences, strict=True):
            lines.append(f"steps, {kind}, {name}: {_in_words(one)}")
        figures[kind] = [asdict(one) for one in convergences]
    return lines, figures


def _in_words(convergence: Convergence) -> str:
    reached = "never" if convergence.reached_s is None else f"after {convergence.reached_s:.0f} s"
    return (
        f"{convergence.share:.3f} of it (at least 0.97), {convergence.refused_share:.2%} refused once converged and "
        f"{convergence.refused_share_in_all:.2%} in all (at most 1 %), 90 % {reached}"
    )
