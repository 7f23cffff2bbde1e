"""What on-policy distillation samples from: shares of several sources, and the messages before each prompt."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.section import Section


class SourceShare(Section):
    """The part that one source has in each batch of rollouts: a number of prompts, or a weight."""

    source: str
    """Name of a source in prompts.sources."""
    num_prompts: int | None = Field(default=None, ge=1)
    """Distinct prompts of it in each batch: for a source that must never be missing, however small its share."""
    weight: float | None = Field(default=None, gt=0.0)
    """Its share, relative to other weights, of the prompts that no `num_prompts` takes, rounded to entire prompts."""

    @model_validator(mode="after")
    def _number_or_weight(self) -> Self:
        if (self.num_prompts is None) == (self.weight is None):
            raise ValueError(
                f"source {self.source!r} has num_prompts {self.num_prompts} and weight {self.weight}; expected one of "
                "them"
            )
        return self


class PrefixMessage(Section):
    """A message that stands before each prompt."""

    role: Literal["user", "assistant"]
    """Who says it; rollouts.system_prompt is the system's."""
    content: str = Field(min_length=1)
    """Its text."""


def prompts_by_source(mixture: Sequence[SourceShare], prompts_per_step: int) -> dict[str, int]:
    """How many prompts of each source a batch has, in the order of `mixture`; they add up to `prompts_per_step`.

    Weights share what the numbers leave by the method of largest remainders, the first source first where they tie.

    Raises:
        ValueError: a source stands there twice or gets no prompt, or the numbers do not add up.
    """
    counts = {share.source: share.num_prompts or 0 for share in mixture}
    weights = {share.source: share.weight for share in mixture if share.weight is not None}
    left = prompts_per_step - sum(counts.values())
    if len(counts) < len(mixture):
        raise ValueError(f"mixture names {', '.join(share.source for share in mixture)}; expected each source once")
    if left < 0 or (left > 0 and not weights):
        raise ValueError(
            f"mixture takes {prompts_per_step - left} prompts of each batch, but prompts_per_step is "
            f"{prompts_per_step}; change one of them, or give a source a weight in place of num_prompts"
        )
    exact = {source: left * weight / sum(weights.values()) for source, weight in weights.items()}
    counts |= {source: int(share) for source, share in exact.items()}
    by_remainder = sorted(exact, key=lambda source: counts[source] - exact[source])
    for source in by_remainder[: prompts_per_step - sum(counts.values())]:
        counts[source] += 1
    if empty := [source for source, count in counts.items() if count == 0]:
        raise ValueError(
            f"mixture leaves no prompt of a batch of {prompts_per_step} to {', '.join(empty)}; raise prompts_per_step "
            "or its weight, or leave it out"
        )
    return counts
