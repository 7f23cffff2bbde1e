"""On-policy trainings as the experiments vary them: every one differs from the others in what it names alone."""

from pathlib import Path
from typing import Any, Final

from benchmarks.science.lab import Lab
from benchmarks.science.tasks.rows import PromptFiles
from benchmarks.science.training import FULL, Course, Training
from stillhouse.config import Divergence, OnPolicyConfig, StudentConfig

EXACT: Final[dict[str, Any]] = {"divergence": (Divergence(),)}
"""The exact reverse KL in place of the sampled one."""
GRPO: Final[dict[str, Any]] = {
    "kl_coef": 0.0,
    "reward_coef": 1.0,
    "prompts_per_step": 8,
    "group_size": 8,
    "learning_rate": 5e-4,
}
"""Rewards alone: no teacher, and as many trajectories a step as the distillations sample."""
BATCH: Final = 64
"""Trajectories of one step."""


def on_policy(lab: Lab, seed: int, **settings: Any) -> OnPolicyConfig:
    """64 prompts a step, one trajectory each, at a constant learning rate, but for `settings`."""
    chosen: dict[str, Any] = {
        "num_steps": 40,
        "prompts_per_step": BATCH,
        "learning_rate": 2e-3,
        "beta2": 0.98,
        "max_tokens": lab.chains.max_tokens,
        "agentic": "off",
        "watch": "off",
        "show_every_steps": 1_000_000,
        "seed": seed,
    } | settings
    for name, most in (("num_steps", 2), ("prompts_per_step", 4), ("group_size", 4)):
        if name in chosen:
            chosen[name] = lab.num(chosen[name], most)
    return OnPolicyConfig(**chosen)


def distil(lab: Lab, seed: int, start: Path, teacher: Path | None, **settings: Any) -> Course:
    """The course of a `distillation`."""
    return lab.course(distillation(lab, seed, start, teacher, **settings))


def distillation(
    lab: Lab,
    seed: int,
    start: Path,
    teacher: Path | None,
    *,
    measure_every: int = 2,
    prompts: PromptFiles | None = None,
    student: StudentConfig = FULL,
    **settings: Any,
) -> Training:
    """An on-policy training on chains; without a teacher it learns from rewards."""
    return Training(
        start=start,
        config=on_policy(lab, seed, **settings),
        measure_every=measure_every,
        student=student,
        prompts=prompts or lab.prompts,
        teacher=teacher,
    )
