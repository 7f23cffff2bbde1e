"""What a pair is measured with: the settings of its training, less what only the training needs."""

from typing import Final

from pydantic import ValidationError

from stillhouse.config import OnPolicyConfig, OnPolicyTeacher, TrainerConfig

TOP_K: Final = 20
"""Most probable tokens compared at each place: as many as a vLLM server gives unless it is told otherwise."""


def pair_settings(config: OnPolicyConfig, default_ref: str | None) -> OnPolicyConfig:
    """One whole trajectory of each prompt, sampled in the training process, and its teachers with their best tokens.

    A teacher that is the student itself as it changes (`ema`) is left out.

    Args:
        config: of the training.
        default_ref: the teacher where `config` names none.
    """
    ref = config.teacher or default_ref
    named = config.teachers or (() if ref is None else (OnPolicyTeacher(name="teacher", model=ref),))
    scoring = [teacher for teacher in named if (config.kl_coef if teacher.kl_coef is None else teacher.kl_coef) > 0.0]
    return OnPolicyConfig(
        # Recorded, as no update follows, and in this form local teachers give their best tokens too.
        source="rollouts",
        teachers=tuple(_with_top_k(teacher) for teacher in scoring if teacher.kind != "ema"),
        route_by=config.route_by,
        unrouted="no_kl",
        adv_estimator="reinforce",
        trainer=TrainerConfig(
            compile="off", seed=config.trainer.seed, microbatch_tokens=config.trainer.microbatch_tokens
        ),
        **{name: getattr(config, name) for name in _SAMPLING},
    )


_SAMPLING: Final = ("max_prompt_tokens", "max_concurrent", "max_tokens", "max_turns", "temperature")


def _with_top_k(teacher: OnPolicyTeacher) -> OnPolicyTeacher:
    """The teacher asked for its best tokens, or as it is if it cannot give them."""
    try:
        return OnPolicyTeacher.model_validate({"top_k": TOP_K, **teacher.model_dump(exclude_defaults=True)})
    except ValidationError:
        return teacher
