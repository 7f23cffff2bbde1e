"""E12: sampling and loss on the first tokens of answers alone, beside whole answers and beside TRL."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult, times
from benchmarks.science.lab import Lab
from benchmarks.science.methods import EXACT, distil, distillation
from benchmarks.science.peer import trl_curve
from benchmarks.science.tasks.chain import LETTERS, ChainKind

_CHAINS: Final = ChainKind(letters=LETTERS[:8], length=12)
"""Twice as long as elsewhere, of half as many letters."""
_BASE_WRONG: Final = 0.2
"""Leaves about three of these longer chains in ten right."""
_SHARE: Final = 0.95
"""Of the teacher's accuracy, which trainings are to reach."""
_SETTINGS: Final = EXACT | {"num_steps": 60}
WHOLE: Final = "whole answers"
"""Name of the training that learns from every token."""
_PREFIXES: Final[dict[str, dict[str, Any]]] = {
    WHOLE: {},
    "first half": {"prefix": {"tokens": 6}},
    "first quarter": {"prefix": {"tokens": 3}},
    "quarter to whole": {"prefix": {"tokens": 3, "final_tokens": 13}},
}


def distilled(lab: Lab, seed: int, changes: Mapping[str, dict[str, Any]]) -> tuple[dict[str, Curve], float]:
    """Curves of distillations on long chains, each with its changes of the settings, and the accuracy to be reached."""
    lab = replace(lab, chains=_CHAINS, base_wrong=_BASE_WRONG)
    base, teacher = lab.base(seed), lab.teacher(seed)
    curves = {
        name: Curve.of(distil(lab, seed, base, teacher, **(_SETTINGS | change))) for name, change in changes.items()
    }
    return curves, _SHARE * lab.exam.accuracy_of(teacher)


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    curves, target = distilled(lab, seed, _PREFIXES)
    lab = replace(lab, chains=_CHAINS, base_wrong=_BASE_WRONG)
    training = distillation(lab, seed, lab.base(seed), lab.teacher(seed), **_SETTINGS)
    curves["TRL, whole answers"] = trl_curve(training, lab.exam, lab.folder / "trl")
    whole, *_ = reached = [curve.reached(target) for curve in curves.values()]
    trl, growing = reached[-1], reached[-2]
    figures = {
        "tokens": times(whole.tokens, growing.tokens),
        "flops": times(whole.flops, growing.flops),
        "seconds": times(whole.seconds, growing.seconds),
        "seconds_of_trl_whole": times(trl.seconds, whole.seconds),
        "half_over_whole": 100 * (curves["first half"].final - curves[WHOLE].final),
        "growing_over_whole": 100 * (curves["quarter to whole"].final - curves[WHOLE].final),
    }
    return SeedResult(seed, curves, figures, target)


EXPERIMENT = Experiment(
    name="e12",
    title="First tokens of answers, or whole answers",
    setup="The exact reverse KL on chains of 12 operations with 8 letters, 64 prompts a step for 60 steps: on whole "
    "answers, on their first half or quarter, and on a prefix that grows from a quarter to the whole. TRL's "
    "DistillationTrainer learns from whole answers of the same prompts.",
    claims=(
        Claim("the first half ends within 2 points of whole answers (arXiv 2602.15260, on mathematics)",
              "half_over_whole", -2.0),
        Claim("a growing prefix does, too", "growing_over_whole", -2.0),
        Claim("and takes at most two thirds of the sampled tokens of whole answers to 95 % of the teacher (less than "
              "half of the operations there)", "tokens", 1.5),
        Claim("TRL takes no fewer seconds for whole answers", "seconds_of_trl_whole", 1.0),
    ),
    run=run,
    curves_over="tokens",
    notes="What is behind a prefix is not trained and moves all the same: students as small as these forget it, and a "
    "prefix that grows learns it again only as it gets there. Answers are half as long as their prompts, which every "
    "forward pass reads: tokens fall more than operations. Seconds are those of one core and of models that leave a "
    "step little but its overhead; at the sizes of `benchmarks.on_policy` TRL takes five times ours.",
)  # fmt: skip
