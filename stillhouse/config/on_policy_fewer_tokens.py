"""What `on_policy.prune` and `on_policy.token_weights` need of the other settings."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stillhouse.config.on_policy import OnPolicyConfig


def scored_top_k(config: "OnPolicyConfig") -> int:
    """The teacher's most probable tokens that are needed at each sampled one before training; 0 for none."""
    prune, weights = config.prune, config.token_weights
    return max(prune.top_k if prune.is_on else 0, weights.top_k if weights.by == "soft_or" else 0)


def check_fewer_tokens(config: "OnPolicyConfig") -> None:
    """Raises ValueError where the two sections do not go with the rest."""
    if scored_top_k(config):
        _check_teachers(config)
    if config.prune.is_on and (config.kl_in_reward or config.kl_discount_factor):
        raise ValueError(
            "kl_in_reward and kl_discount_factor credit a token with the KL of those behind it, which `prune` does not "
            "trust where they have drifted; leave out either"
        )
    if config.prune.window is not None:
        _check_window(config, config.prune.window)


def _check_teachers(config: "OnPolicyConfig") -> None:
    needs = "prune.min_overlap" if config.prune.is_on else "token_weights.by `soft_or`"
    if not config.needs_teacher:
        raise ValueError(f"{needs} compares student and teacher, and kl_coef is 0: raise kl_coef, or leave it out")
    top_k = scored_top_k(config)
    for teacher in config.teachers:
        if teacher.alignment != "ids" or teacher.kind == "echo":
            raise ValueError(
                f"{needs} compares most probable tokens by their ids, which teacher {teacher.name!r} (kind "
                f"{teacher.kind!r}, alignment {teacher.alignment!r}) does not give; use a teacher of the student's "
                "family, local or behind vLLM or SGLang"
            )
        if not teacher.is_local and (teacher.top_k or 0) < top_k:
            raise ValueError(
                f"{needs} takes the {top_k} most probable tokens of the teacher, and teacher {teacher.name!r} of kind "
                f"{teacher.kind!r} gives {teacher.top_k or 'none'}; set its top_k to {top_k} or more, or lower the "
                "section's"
            )


def _check_window(config: "OnPolicyConfig", window: int) -> None:
    others = {
        "prefix.tokens, which bounds the same": config.prefix.tokens is not None,
        "reward_coef above 0: rewards judge whole answers": config.reward_coef > 0.0,
        "max_staleness: each batch is measured before the next is sampled": config.max_staleness > 0,
        "source `rollouts`, sampled before anything is measured": config.source == "rollouts",
    }
    for other, is_set in others.items():
        if is_set:
            raise ValueError(f"prune.window = {window} does not go with {other}; leave out either")
    if config.skip_first_n_tokens >= window:
        raise ValueError(
            f"skip_first_n_tokens = {config.skip_first_n_tokens} leaves nothing of prune.window = {window}; expected "
            "less"
        )
