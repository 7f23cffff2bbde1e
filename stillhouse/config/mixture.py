"""How several sources share the prompts of each batch of on-policy distillation."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, WithJsonSchema

Share = Annotated[int, Field(strict=True, ge=1)] | Annotated[float, Field(gt=0.0, lt=1.0)]
"""A number of prompts, or a share of those that no number takes."""
# Prefect's form has no field for a value of several types.
Mixture = Annotated[Mapping[str, Share], WithJsonSchema({"type": "object"})]
"""By source."""


def prompts_by_source(mixture: Mapping[str, Share], prompts_per_step: int) -> dict[str, int]:
    """Return how many prompts of each source a batch has, in the order of `mixture`; together `prompts_per_step`.

    Shares, relative to each other, divide what the numbers leave by the method of largest remainders, the first source
    first where they tie. Raises ValueError if a source gets no prompt, or the numbers do not add up.
    """
    counts = {source: share if isinstance(share, int) else 0 for source, share in mixture.items()}
    shares = {source: share for source, share in mixture.items() if isinstance(share, float)}
    if not mixture:
        return {}
    left = prompts_per_step - sum(counts.values())
    if left < 0 or (left > 0 and not shares):
        raise ValueError(
            f"mixture takes {prompts_per_step - left} prompts of each batch, but prompts_per_step is "
            f"{prompts_per_step}; change one of them, or give a source a share below 1 in place of a number"
        )
    exact = {source: left * share / sum(shares.values()) for source, share in shares.items()}
    counts |= {source: int(share) for source, share in exact.items()}
    by_remainder = sorted(exact, key=lambda source: counts[source] - exact[source])
    for source in by_remainder[: prompts_per_step - sum(counts.values())]:
        counts[source] += 1
    if empty := [source for source, count in counts.items() if count == 0]:
        raise ValueError(
            f"mixture leaves no prompt of a batch of {prompts_per_step} to {', '.join(empty)}; raise prompts_per_step "
            "or its share, or leave it out"
        )
    return counts
