"""How much of each trajectory on-policy distillation samples."""

from typing import Self

from pydantic import Field, model_validator

from stillhouse.config.section import Section


class PrefixConfig(Section):
    """Sampling that ends after the first tokens of each trajectory, which alone are learnt from (arXiv 2602.15260)."""

    tokens: int | None = Field(default=None, ge=1)
    """Tokens sampled of each trajectory, all its turns together; None samples all. A quarter to a half of what
    trajectories have (`mean_completion_tokens`) saves most of the time where answers are long and their first part
    decides. Small models forget what is behind it: watch `generation_accuracy`, and set `final_tokens`."""
    final_tokens: int | None = Field(default=None, ge=1)
    """Tokens sampled in the last batch, to which the number grows from `tokens` in even steps; None keeps it. Set it
    to the longest answers, so that their ends are learnt as well."""

    @model_validator(mode="after")
    def _grows_from_a_start(self) -> Self:
        if self.final_tokens is not None and (self.tokens is None or self.final_tokens < self.tokens):
            raise ValueError(
                f"prefix.final_tokens = {self.final_tokens} with prefix.tokens = {self.tokens}: expected a number to "
                "grow from; set prefix.tokens to no more than final_tokens"
            )
        return self
