"""E1: on-policy distillation beside GRPO, from the same start to the same accuracy."""

from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult, times
from benchmarks.science.lab import Lab
from benchmarks.science.methods import EXACT, GRPO, distil

_RATES = (5e-4, 1e-3)
_SHARE = 0.95


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    base = lab.base(seed)
    grpo = {
        f"GRPO, rate {rate:g}": distil(
            lab, seed, base, None, **(GRPO | {"learning_rate": rate, "num_steps": 200}), measure_every=4
        )
        for rate in _RATES
    }
    teacher = grpo[f"GRPO, rate {_RATES[0]:g}"].folder
    distilled = {
        "on-policy, exact KL": distil(lab, seed, base, teacher, measure_every=1, **EXACT),
        "on-policy, sampled KL": distil(lab, seed, base, teacher, measure_every=1, learning_rate=1e-3),
    }
    curves = {name: Curve.of(course) for name, course in (grpo | distilled).items()}
    target = _SHARE * curves[f"GRPO, rate {_RATES[0]:g}"].final
    reached = {name: curve.reached(target) for name, curve in curves.items()}
    quickest = min((reached[name] for name in grpo), key=lambda one: one.steps)
    exact, sampled = (reached[name] for name in distilled)
    figures = {
        "steps": times(quickest.steps, exact.steps),
        "steps_sampled": times(quickest.steps, sampled.steps),
        "tokens": times(quickest.tokens, exact.tokens),
        "flops": times(quickest.flops, exact.flops),
        "flops_sampled": times(quickest.flops, sampled.flops),
        "share_of_teacher": curves["on-policy, exact KL"].final / curves[f"GRPO, rate {_RATES[0]:g}"].final,
    }
    return SeedResult(seed, curves, figures, target)


EXPERIMENT = Experiment(
    name="e1",
    title="On-policy distillation or GRPO: steps to 95 % of the teacher",
    setup="GRPO trains the base student for 200 steps of 8 prompts with 8 trajectories each. What it ends as is the "
    "teacher of the distillations, which start from the same base and sample as many trajectories a step. The quicker "
    "of two learning rates counts for GRPO.",
    claims=(
        Claim("GRPO takes at least 5 times the steps of distillation by the exact KL (7 to 10 times in "
              "Thinking Machines, On-Policy Distillation, 2025)", "steps", 5.0),
        Claim("and of distillation by the sampled KL", "steps_sampled", 5.0),
        Claim("GRPO takes at least 5 times the floating-point operations, the teacher's included (9 to 30 times there)",
              "flops", 5.0),
    ),
    run=run,
    curves_over="step",
    notes="The cost of making the teacher is GRPO's own and is counted for GRPO alone: distillation is for when a "
    "teacher is at hand.",
)  # fmt: skip
