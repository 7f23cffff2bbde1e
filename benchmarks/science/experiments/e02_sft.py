"""E2: on-policy distillation against SFT on the teacher's answers, token for token."""

from dataclasses import replace

from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult, times
from benchmarks.science.lab import Lab
from benchmarks.science.methods import BATCH, EXACT, distil
from benchmarks.science.teacher_rows import sampled_rows
from benchmarks.science.training import Training

_SHARE = 0.95
_NUM_STEPS = 60
_ON_POLICY = "on-policy, exact KL"
_FRESH = "SFT, each row once"


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    base, teacher = lab.base(seed), lab.teacher(seed)
    curves = {
        _ON_POLICY: Curve.of(distil(lab, seed, base, teacher, num_steps=_NUM_STEPS, **EXACT)),
        _FRESH: _sft(lab, seed, _NUM_STEPS * BATCH, 1),
        "SFT, 960 rows 4 times": _sft(lab, seed, _NUM_STEPS * BATCH // 4, 4),
        "SFT, 240 rows 16 times": _sft(lab, seed, _NUM_STEPS * BATCH // 16, 16),
    }
    target = _SHARE * lab.exam.accuracy_of(teacher)
    on_policy, sft = curves[_ON_POLICY].reached(target), curves[_FRESH].reached(target)
    figures = {
        "tokens": times(sft.tokens, on_policy.tokens),
        "flops": times(sft.flops, on_policy.flops),
        "points_at_the_end": 100 * (curves[_ON_POLICY].final - curves[_FRESH].final),
        "points_over_few_rows": 100 * (curves[_ON_POLICY].final - curves["SFT, 240 rows 16 times"].final),
    }
    return SeedResult(seed, curves, figures, target)


def _sft(lab: Lab, seed: int, num_rows: int, num_epochs: int) -> Curve:
    base, teacher = lab.base(seed), lab.teacher(seed)
    rows = sampled_rows(lab, teacher, lab.prompt_chains[:num_rows], seed)
    config = lab.sft(rows, seed, num_epochs=num_epochs, learning_rate=2e-3).model_copy(
        update={"schedule": "constant", "warmup_steps": 0, "batch_size": lab.num(BATCH, 4)}
    )
    curve = Curve.of(lab.course(Training(start=base, config=config, measure_every=2)))
    # The teacher has sampled each row once: a forward pass of a model like the student, a third of a training step.
    sampling = curve.points[-1].flops / 3 / num_epochs
    steps_of_an_epoch = curve.points[-1].step / num_epochs
    return Curve([replace(p, flops=p.flops + sampling * min(1.0, p.step / steps_of_an_epoch)) for p in curve.points])


EXPERIMENT = Experiment(
    name="e2",
    title="On-policy distillation or SFT on the teacher's answers, at equal tokens",
    setup="Both start from the base and take 60 steps of 64 sequences at the same constant learning rate. SFT learns "
    "what the teacher sampled, on-policy distillation what the teacher thinks of what the student sampled. The target "
    "is 95 % of the teacher's accuracy.",
    claims=(
        Claim("SFT takes at least 9 times the floating-point operations to the same accuracy (9 to 30 times in "
              "Thinking Machines, 2025)", "flops", 9.0),
        Claim("SFT takes more tokens to the same accuracy", "tokens", 1.0),
        Claim("on-policy distillation ends higher than SFT of as many tokens on fresh rows", "points_at_the_end", 0.0),
        Claim("and higher than SFT of as many tokens on few rows", "points_over_few_rows", 0.0),
    ),
    run=run,
    curves_over="tokens",
)  # fmt: skip
