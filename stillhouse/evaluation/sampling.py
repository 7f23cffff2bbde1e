"""How models are sampled to compare them."""

from stillhouse.config import EvaluationConfig, RolloutsConfig


def evaluation_rollouts(
    evaluation: EvaluationConfig, system_prompt: str | None, *, record_tokens: bool
) -> RolloutsConfig:
    """Return how models are sampled to compare them; its completions in the journal are found by it."""
    return RolloutsConfig(
        num_samples=evaluation.num_samples,
        system_prompt=system_prompt,
        temperature=evaluation.temperature,
        max_tokens=evaluation.max_tokens,
        max_turns=evaluation.max_turns,
        # On-policy training, whose student is measured here, samples none either.
        closing_answer=False,
        seed=evaluation.seed,
        record_tokens=record_tokens,
    )
