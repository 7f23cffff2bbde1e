"""E9: how little an adapter may hold."""

from typing import Final

from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult
from benchmarks.science.lab import Lab
from benchmarks.science.methods import BATCH, EXACT, distil
from benchmarks.science.teacher_rows import sampled_rows
from benchmarks.science.training import FULL, Training
from stillhouse.config import StudentConfig

_RANKS: Final = (1, 4, 16)
_NUM_STEPS: Final = 60
_ADAPTER_RATE: Final = 1e-2


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    base, teacher = lab.base(seed), lab.teacher(seed)
    rows = sampled_rows(lab, teacher, lab.prompt_chains[: _NUM_STEPS * BATCH], seed)
    students = {f"rank {rank}": _adapter(rank) for rank in _RANKS} | {"all weights": FULL}
    curves = {}
    for name, student in students.items():
        rate = 2e-3 if student is FULL else _ADAPTER_RATE
        config = lab.sft(rows, seed, num_epochs=1, learning_rate=rate).model_copy(
            update={"schedule": "constant", "warmup_steps": 0, "batch_size": lab.num(BATCH, 4)}
        )
        training = Training(start=base, config=config, measure_every=20, student=student)
        curves[f"SFT, {name}"] = Curve.of(lab.course(training))
        curves[f"on-policy, {name}"] = Curve.of(
            distil(
                lab, seed, base, teacher, num_steps=_NUM_STEPS, learning_rate=rate, student=student, measure_every=20,
                **EXACT,
            )
        )  # fmt: skip
    gaps = {
        method: 100 * (curves[f"{method}, all weights"].final - curves[f"{method}, rank 1"].final)
        for method in ("SFT", "on-policy")
    }
    figures = {"gap_after_sft": gaps["SFT"], "gap_after_on_policy": gaps["on-policy"]}
    return SeedResult(seed, curves, figures | {"narrowing": gaps["SFT"] - gaps["on-policy"]})


def _adapter(rank: int) -> StudentConfig:
    return StudentConfig(parameters="lora", lora_rank=rank, lora_alpha=2.0 * rank, dtype="float32", max_length=512)


EXPERIMENT = Experiment(
    name="e9",
    title="LoRA's rank, after SFT and after on-policy distillation",
    setup="Sixty steps of 64 sequences from the base towards the teacher, training all weights or an adapter. Thinking "
    "Machines (2025) report that rank 32 lags full fine-tuning by 13 points after SFT and by 6 after on-policy "
    "distillation.",
    claims=(
        Claim("rank 1 lags further behind after SFT than after on-policy distillation", "narrowing", 0.0),
        Claim(
            "after on-policy distillation rank 1 lags by less than 6 points", "gap_after_on_policy", 6.0, is_upper=True
        ),
    ),
    run=run,
)
