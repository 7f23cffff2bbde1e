"""Which tokens on-policy distillation weighs."""

from typing import Literal

from pydantic import Field

from stillhouse.config.section import Section


class TokenWeightsConfig(Section):
    """Loss on the most important tokens of each trajectory alone (TIP, arXiv 2604.14084)."""

    by: Literal["entropy", "soft_or"] | None = None
    """What makes a token important: the student's `entropy`, or either that or its divergence from the teacher
    (`soft_or`), which also finds tokens where the student is sure and wrong; None learns from all. `soft_or` first;
    `entropy` where there is no teacher, or one that gives no distribution."""
    keep: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of each trajectory's sampled tokens that weigh 1; the others weigh 0, and the loss is the mean over those
    kept. TIP is best at 0.5, near it at 0.2, which is also what reinforcement learning took (arXiv 2506.01939)."""
    top_k: int = Field(default=16, ge=1)
    """The teacher's most probable tokens from which `soft_or` takes the divergence, all others counting as one. A
    server has to give as many (`teachers[].top_k`); of a local teacher whose whole distribution the loss compares,
    `soft_or` takes all of it."""
