"""E12: sampling and loss on the first tokens of answers alone, beside whole answers and beside TRL."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult, times
from benchmarks.science.lab import Lab
from benchmarks.science.methods import EXACT, distil, distillation
from benchmarks.science.peer import trl_curve
from benchmarks.science.tasks.chain import LETTERS, ChainKind

LONG_CHAINS: Final = ChainKind(letters=LETTERS[:8], length=12)
"""Twice as long as elsewhere, of half as many letters."""
BASE_WRONG: Final = 0.2
"""Leaves about three of these longer chains in ten right."""
SHARE: Final = 0.95
"""Of the teacher's accuracy, which trainings are to reach."""
NUM_STEPS: Final = 60
WHOLE: Final = "whole answers"
"""Name of the training that learns from every token."""
_PREFIXES: Final[dict[str, dict[str, Any]]] = {
    WHOLE: {},
    "first half": {"prefix": {"tokens": 6}},
    "first quarter": {"prefix": {"tokens": 3}},
    "quarter to whole": {"prefix": {"tokens": 3, "final_tokens": 13}},
}


def long_answers(lab: Lab, seed: int) -> tuple[Lab, Path, Path, dict[str, Any]]:
    """The lab on long chains, a base student and its teacher, and the settings of their distillation."""
    lab = replace(lab, chains=LONG_CHAINS, base_wrong=BASE_WRONG)
    return lab, lab.base(seed), lab.teacher(seed), EXACT | {"num_steps": NUM_STEPS}


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    lab, base, teacher, settings = long_answers(lab, seed)
    curves = {
        name: Curve.of(distil(lab, seed, base, teacher, **(settings | prefix))) for name, prefix in _PREFIXES.items()
    }
    curves["TRL, whole answers"] = trl_curve(
        distillation(lab, seed, base, teacher, **settings), lab.exam, lab.folder / "trl"
    )
    target = SHARE * lab.exam.accuracy_of(teacher)
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
