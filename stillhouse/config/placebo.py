"""The section of placebos: trainings whose teacher says nothing, which a student has to beat."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.on_policy import OnPolicyConfig
from stillhouse.config.section import Section

Placebo = Literal["shuffled", "constant"]
"""What stands in for the teacher's scores; see `stillhouse.training.on_policy.batches.placebo`."""


class PlaceboConfig(Section):
    """Trainings without information from the teacher. A student trained on-policy becomes champion only if it is better
    than each of them, and than the student it started from.

    Training moves a student without a teacher's help as well: it sharpens, learns the form of answers, loses entropy.
    Random rewards have raised accuracy on MATH-500 by 21 points (Spurious Rewards, arXiv 2506.10947).
    """

    enabled: bool = False
    """Train the arms below after on-policy distillation, measure them on the held-out prompts, and compare the student
    with each. Needs `promotion.enabled` and an on-policy training with a teacher."""
    arms: Annotated[tuple[Placebo, ...], Field(min_length=1)] = ("shuffled", "constant")
    """`shuffled` gives the teacher's scores of a batch to other tokens of it; `constant` gives each token the mean size
    of these scores, as a negative advantage. Both: they go wrong, or right, in different ways."""
    steps_share: float = Field(default=0.25, gt=0.0, le=1.0)
    """Steps of an arm, as a share of on_policy.num_steps. At 1 an arm costs what the training does and is the fairest;
    0.25 is cheap, and what comes without information comes early: spurious rewards of most kinds had raised accuracy
    within 50 of 300 steps (arXiv 2506.10947)."""
    level: float = Field(default=0.05, gt=0.0, lt=0.5)
    """Largest one-sided p of each paired test. All of them have to be passed, so that their number asks for no
    correction: whichever of them is not truly beaten, the chance of passing it is at most this."""

    @model_validator(mode="after")
    def _each_arm_once(self) -> Self:
        if len(set(self.arms)) < len(self.arms):
            raise ValueError(f"arms are {', '.join(self.arms)}; expected each of them once")
        return self

    def settings(self, training: OnPolicyConfig) -> OnPolicyConfig:
        """The settings of an arm: those of the training, but fewer steps, and scores of sampled tokens.

        An exact divergence has no score that could be another token's. Its arms take the policy gradient of the sampled
        KL, which in the mean is the gradient of the reverse KL.
        """
        return training.model_copy(
            update={
                "num_steps": math.ceil(self.steps_share * training.num_steps),
                "warmup_steps": math.floor(self.steps_share * training.warmup_steps),
                "divergence": (),
                "teachers": tuple(teacher.model_copy(update={"top_k": None}) for teacher in training.teachers),
                "generate_every_steps": None,
                # That it goes wrong is to be expected, and no reason to end a run.
                "watch": "off",
            }
        )
