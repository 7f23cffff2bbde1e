"""What is asked about a pair."""

from pydantic import BaseModel, ConfigDict

from stillhouse.agent.turns import TurnRules
from stillhouse.config import (
    DistillConfig,
    EvaluationConfig,
    OnPolicyConfig,
    OnPolicyTeacher,
    StudentConfig,
    TeacherConfig,
    ToolsConfig,
)
from stillhouse.training.pair.settings import pair_settings
from tasks.models import student_scorer


class PairCase(BaseModel):
    """A pair besides the student's weights; an input of the stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    student: StudentConfig
    training: OnPolicyConfig | None
    """None for SFT alone."""
    default_teacher: str | None
    """Scores where `training` names no teacher."""
    teacher: TeacherConfig
    """That of the rollouts."""
    num_rollouts: int
    """Rollouts of `teacher` that SFT is still to be given; 0 where there is none."""
    comes_after_sft: bool
    """Whether SFT comes between the student as it is measured and `training`."""
    records_tokens: bool
    """Whether an evaluation records the student's tokens, so that it finds the same answers."""
    evaluation: EvaluationConfig
    tools: ToolsConfig
    system_prompt: str | None
    rules: TurnRules

    @classmethod
    def of(cls, config: DistillConfig, *, num_rollouts: int = 0, comes_after_sft: bool = False) -> "PairCase":
        """The case of a config."""
        training = config.on_policy if config.on_policy.enabled else None
        has_default = training is not None and training.needs_teacher and not training.teachers
        return cls(
            student=config.student,
            training=training,
            default_teacher=config.scoring_teacher if has_default else None,
            teacher=config.teacher,
            num_rollouts=num_rollouts,
            comes_after_sft=comes_after_sft,
            records_tokens=student_scorer(config) is not None,
            evaluation=config.evaluation,
            tools=config.tools,
            system_prompt=config.rollouts.system_prompt,
            rules=TurnRules.of(config.rollouts),
        )

    @property
    def settings(self) -> OnPolicyConfig | None:
        """What the training process measures with; None for SFT alone."""
        return None if self.training is None else pair_settings(self.training, self.default_teacher)

    @property
    def scorers(self) -> tuple[OnPolicyTeacher, ...]:
        """The teachers that score."""
        return () if self.settings is None else self.settings.teachers
