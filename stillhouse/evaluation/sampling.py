"""How models are sampled to compare them."""

from stillhouse.config import EvaluationConfig, RolloutsConfig


def evaluation_rollouts(
    evaluation: EvaluationConfig, system_prompt: str | None, *, record_tokens: bool
) -> RolloutsConfig:
    """Return how models are sampled to compare them; its completions in the journal are found by it."""
    return RolloutsConfig(
        **evaluation.model_dump(exclude={"enabled", "max_prompts"}),
        system_prompt=system_prompt,
        # On-policy training, whose student is measured here, samples none either.
        closing_answer=False,
        record_tokens=record_tokens,
    )
