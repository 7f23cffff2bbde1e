"""E13: rollouts that count less, and end, where they drift from the teacher."""

from typing import Any, Final

from benchmarks.science.experiments.e12_prefix import WHOLE, distilled
from benchmarks.science.findings import Claim, Experiment, SeedResult, times
from benchmarks.science.lab import Lab

_PRUNE: Final[dict[str, Any]] = {"min_overlap": 1.0, "top_k": 1, "weight_drop": 0.2, "base_weight": 0.0}
"""A token has drifted where the student's most probable one is not the teacher's; five such tokens end a rollout. Of
the 16 best, of which Prune-OPD compares 0.7, all but one or two are noise in models as sure as these."""
_PRUNED: Final[dict[str, dict[str, Any]]] = {
    WHOLE: {},
    "pruned": {"prune": _PRUNE},
    "pruned, window from 6 tokens": {"prune": _PRUNE | {"window": 6, "window_step": 1}},
}


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    curves, target = distilled(lab, seed, _PRUNED)
    whole, pruned, windowed = (curve.reached(target) for curve in curves.values())
    figures = {
        "tokens": times(whole.tokens, pruned.tokens),
        "window_tokens": times(whole.tokens, windowed.tokens),
        "window_flops": times(whole.flops, windowed.flops),
        "window_seconds": times(whole.seconds, windowed.seconds),
        "pruned_over_whole": 100 * (curves["pruned"].final - curves[WHOLE].final),
    }
    return SeedResult(seed, curves, figures, target)


EXPERIMENT = Experiment(
    name="e13",
    title="Rollouts pruned where they drift",
    setup="The trainings of E12 on whole answers, beside rollouts whose tokens weigh less after each one at which the "
    "student would have chosen another than the teacher, and which end after five; and the same with a number of "
    "sampled tokens that follows how far rollouts are reliable.",
    claims=(
        Claim("pruning takes at most the tokens of whole answers to 95 % of the teacher", "tokens", 1.0),
        Claim("with a window it takes fewer operations (37.6 to 68.0 % less time in Prune-OPD, arXiv 2605.07804)",
              "window_flops", 1.0),
        Claim("pruning ends within 2 points of whole answers", "pruned_over_whole", -2.0),
    ),
    run=run,
    curves_over="tokens",
    notes="Drift is measured by one more pass of the student over each batch, which is counted in the seconds and not "
    "in the operations.",
)  # fmt: skip
