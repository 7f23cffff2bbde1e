"""E8: rollouts sampled some updates before they are trained on."""

from typing import Any, Final

from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult
from benchmarks.science.lab import Lab
from benchmarks.science.methods import distil

_LAGS: Final = (1, 4, 8)
FORMS: Final[dict[str, dict[str, Any]]] = {
    "no ratio": {"loss_fn": "reinforce", "advantage_against": "sampler"},
    "ratio, sampler's KL": {"advantage_against": "sampler"},
    "ratio, current KL": {},
    "truncated ratio": {"correction": "truncate"},
    "masked ratio": {"correction": "mask"},
}
"""Ways to allow for it, from none to all; `current` is the advantage of those that do not name one."""


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    base, teacher = lab.base(seed), lab.teacher(seed)

    def curve(lag: int, **settings: Any) -> Curve:
        course = distil(lab, seed, base, teacher, learning_rate=1e-3, max_staleness=lag, measure_every=10, **settings)
        return Curve.of(course)

    curves = {"lag 0": curve(0)}
    curves |= {f"lag {lag}, {name}": curve(lag, **settings) for lag in _LAGS for name, settings in FORMS.items()}
    finals = {name: 100 * one.final for name, one in curves.items()}
    figures = {
        "lost_at_lag_1": finals["lag 0"] - finals["lag 1, ratio, current KL"],
        "current_over_sampler": finals["lag 8, ratio, current KL"] - finals["lag 8, ratio, sampler's KL"],
        "mask_over_none": finals["lag 8, masked ratio"] - finals["lag 8, no ratio"],
        "mask_is_best": finals["lag 8, masked ratio"] - max(finals[f"lag 8, {name}"] for name in FORMS),
    }
    return SeedResult(seed, curves, figures)


EXPERIMENT = Experiment(
    name="e8",
    title="Staleness",
    setup="Forty steps by the sampled KL, on rollouts of the newest weights or of those 1, 4 or 8 updates before, with "
    "five ways to allow for the difference.",
    claims=(
        Claim("one step of lag costs less than 3 points", "lost_at_lag_1", 3.0, is_upper=True),
        Claim("at lag 8 the KL of the current student is better than the sampler's", "current_over_sampler", 0.0),
        Claim("at lag 8 masking ratios out of bounds is better than no ratio at all", "mask_over_none", 0.0),
        Claim("and, to a point, the best of the five", "mask_is_best", -1.0),
    ),
    run=run,
)
