"""E7: the divergence that is minimised, and how it is estimated."""

from typing import Any, Final

from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult, times
from benchmarks.science.gradients import kept_gradient_noise
from benchmarks.science.lab import Lab
from benchmarks.science.methods import BATCH, distil, on_policy
from benchmarks.science.tasks.rows import write_questions
from benchmarks.science.training import Training
from stillhouse.config import Divergence

_TOP: Final = 2
_NUM_RESAMPLES: Final = 32
_SHARE: Final = 0.95
_EXACT: Final = "exact reverse KL"
_SAMPLED: Final = "sampled KL"
_RAW: Final = "top-2 reverse KL, no tail"
ESTIMATORS: Final[dict[str, dict[str, Any]]] = {
    _SAMPLED: {},
    "sampled KL, exact baseline": {"kl_baseline": True},
    _EXACT: {"divergence": (Divergence(),)},
    "exact forward KL": {"divergence": (Divergence(kind="forward_kl"),)},
    "exact JSD": {"divergence": (Divergence(kind="jsd"),)},
    "top-2 reverse KL, tail": {"divergence": (Divergence(top_k=_TOP),)},
    _RAW: {"divergence": (Divergence(top_k=_TOP, tail=False),)},
    "top-2 forward KL, tail": {"divergence": (Divergence(kind="forward_kl", top_k=_TOP),)},
    "top-2 forward KL, no tail": {"divergence": (Divergence(kind="forward_kl", top_k=_TOP, tail=False),)},
}


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    base, teacher = lab.base(seed), lab.teacher(seed)
    curves = {
        name: Curve.of(distil(lab, seed, base, teacher, learning_rate=1e-3, **settings))
        for name, settings in ESTIMATORS.items()
    }
    same = write_questions(lab.data, [one.question() for one in lab.prompt_chains[: lab.num(BATCH, 4)]])
    noise = {}
    for name in (_SAMPLED, "sampled KL, exact baseline", _EXACT):
        config = on_policy(lab, seed, num_steps=_NUM_RESAMPLES, **ESTIMATORS[name])
        training = Training(start=base, config=config, measure_every=1, prompts=same, teacher=teacher)
        noise[name] = kept_gradient_noise(training, config.num_steps, lab.folder / "noise")
    target = _SHARE * lab.exam.accuracy_of(teacher)
    figures = {
        "steps_sampled_over_exact": times(curves[_SAMPLED].reached(target).steps, curves[_EXACT].reached(target).steps),
        "noise_sampled_over_exact": times(noise[_SAMPLED], noise[_EXACT]),
        "noise_left_by_baseline": times(noise["sampled KL, exact baseline"], noise[_SAMPLED]),
        "points_lost_without_tail": 100 * (curves["top-2 reverse KL, tail"].final - curves[_RAW].final),
        **{f"noise of {name}": value for name, value in noise.items()},
    }
    return SeedResult(seed, curves, figures, target)


EXPERIMENT = Experiment(
    name="e7",
    title="Estimators of the divergence",
    setup="Forty steps from the base towards the teacher, each with another signal and all at the same learning rate. "
    "The noise of a gradient is its variance over 32 resamples of the same 64 prompts, over the squared norm of "
    "its mean.",
    claims=(
        Claim("the sampled KL takes more steps than the exact one", "steps_sampled_over_exact", 1.0),
        Claim("its gradient is noisier", "noise_sampled_over_exact", 1.0),
        Claim("taking the exact KL off as a baseline lowers the noise (vOPD, arXiv 2605.07865)",
              "noise_left_by_baseline", 1.0, is_upper=True),
        Claim("a top-k reverse KL without its tail collapses: 20 points and more are lost", "points_lost_without_tail",
              20.0),
    ),
    run=run,
    curves_over="step",
    notes="k2 and k3 are values to report, not modes of the trainer: the gradient of k2 is that of the sampled KL, and "
    "the gradient of k3 is that of the forward KL.",
)  # fmt: skip
