"""The question about a pair, and the settings with which it is measured."""

from typing import Final

from pydantic import ValidationError

from stillhouse.agent.turns import TurnRules
from stillhouse.config import (
    DistillConfig,
    EvaluationConfig,
    OnPolicyConfig,
    OnPolicyTeacher,
    StudentConfig,
    TeacherConfig,
    ToolsConfig,
    TrainerConfig,
)
from stillhouse.config.section import Section
from stillhouse.training.pair.finding import TOP_K
from tasks.models import student_scorer

_SAMPLING: Final = ("max_prompt_tokens", "max_concurrent", "max_tokens", "max_turns", "temperature")


class PairCase(Section):
    """A pair besides the student's weights; an input of the stage."""

    student: StudentConfig
    training: OnPolicyConfig | None
    """None for SFT alone."""
    default_teacher: str | None
    """Scores where `training` names no teacher."""
    teacher: TeacherConfig
    """Writes the rollouts."""
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
    def scorers(self) -> tuple[OnPolicyTeacher, ...]:
        """Return the teachers that score, asked for their best tokens; not the student itself as it changes."""
        if self.training is None:
            return ()
        ref, kl_coef = self.training.teacher or self.default_teacher, self.training.kl_coef
        named = self.training.teachers or (() if ref is None else (OnPolicyTeacher(name="teacher", model=ref),))
        scoring = [one for one in named if (kl_coef if one.kl_coef is None else one.kl_coef) > 0.0]
        return tuple(_with_top_k(teacher) for teacher in scoring if teacher.kind != "ema")

    @property
    def settings(self) -> OnPolicyConfig:
        """Return the settings to measure with: one whole trajectory a prompt, sampled in the training process."""
        assert self.training is not None
        trainer = self.training.trainer
        return OnPolicyConfig(
            # Recorded, as no update follows, and in this form local teachers give their best tokens too.
            source="rollouts",
            teachers=self.scorers,
            route_by=self.training.route_by,
            unrouted="no_kl",
            adv_estimator="reinforce",
            trainer=TrainerConfig(compile="off", seed=trainer.seed, microbatch_tokens=trainer.microbatch_tokens),
            **{name: getattr(self.training, name) for name in _SAMPLING},
        )


def _with_top_k(teacher: OnPolicyTeacher) -> OnPolicyTeacher:
    """Return the teacher asked for its best tokens, or as it is if it cannot give them."""
    try:
        return OnPolicyTeacher.model_validate({"top_k": TOP_K, **teacher.model_dump(exclude_defaults=True)})
    except ValidationError:
        return teacher
