"""E11: rewards together with a teacher that is no better than four right answers in five."""

from typing import Any, Final

from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult
from benchmarks.science.lab import Lab
from benchmarks.science.methods import GRPO, distil

MIXTURES: Final[dict[str, dict[str, Any]]] = {
    "rewards alone": {},
    "rewards and 0.1 KL": {"kl_coef": 0.1},
    "rewards and 1 KL": {"kl_coef": 1.0},
    "KL alone": {"kl_coef": 1.0, "reward_coef": 0.0},
}
_NUM_STEPS: Final = 160


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    base, weak = lab.base(seed), lab.weak_teacher(seed)
    curves = {
        name: Curve.of(
            distil(
                lab, seed, base, weak if mixture.get("kl_coef") else None, measure_every=8,
                **(GRPO | {"num_steps": _NUM_STEPS} | mixture),
            )
        )
        for name, mixture in MIXTURES.items()
    }  # fmt: skip
    teacher = lab.exam.accuracy_of(weak)
    early = {name: curve.points[len(curve.points) // 4].accuracy for name, curve in curves.items()}
    figures = {
        "teacher": 100 * teacher,
        "mixed_over_teacher": 100 * (curves["rewards and 0.1 KL"].final - teacher),
        "pure_over_teacher": 100 * (curves["KL alone"].final - teacher),
        "mixed_over_rewards_early": 100 * (early["rewards and 0.1 KL"] - early["rewards alone"]),
    }
    return SeedResult(seed, curves, figures, teacher)


EXPERIMENT = Experiment(
    name="e11",
    title="Rewards with a weak teacher",
    setup="160 steps of 8 prompts with 8 trajectories each, with rewards, the KL to a teacher of about 80 %, or both. "
    "The target is the teacher's own accuracy.",
    claims=(
        Claim("rewards with a little KL exceed the teacher by 5 points and more", "mixed_over_teacher", 5.0),
        Claim("the KL alone ends within 5 points above the teacher", "pure_over_teacher", 5.0, is_upper=True),
        Claim("after a quarter of the steps the mixture is ahead of rewards alone", "mixed_over_rewards_early", 0.0),
    ),
    run=run,
    curves_over="step",
)
