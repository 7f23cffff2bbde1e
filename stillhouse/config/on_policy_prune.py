"""What on-policy distillation does with rollouts that drift from their teacher."""

from typing import Self

from pydantic import Field, model_validator

from stillhouse.config.section import Section


class PruneConfig(Section):
    """Less weight on a rollout as it drifts from its teacher, and its end once it has (Prune-OPD, arXiv 2605.07804)."""

    min_overlap: float | None = Field(default=None, gt=0.0, le=1.0)
    """Share of the student's `top_k` most probable next tokens that are among the teacher's, below which a token counts
    as drift; None prunes nothing. Prune-OPD's is 0.7; set it below the `top_k_overlap` of your pair."""
    top_k: int = Field(default=16, ge=1)
    """Most probable tokens that are compared, 16 in Prune-OPD; 1 for models that are sure of nearly every token, whose
    others are noise. A server has to give as many (`teachers[].top_k`)."""
    weight_drop: float = Field(default=0.01, gt=0.0, le=1.0)
    """Reliability that a rollout loses with each drifted token, of 1 at its start. At Prune-OPD's 0.01 a hundred of
    them end it, which short answers never have: there try 0.05 to 0.3."""
    base_weight: float = Field(default=0.5, ge=0.0)
    """Added to the reliability to give the weight of a token's loss, which begins at 1: (reliability + base_weight) /
    (1 + base_weight). 0.5 is Prune-OPD's, 0 lets the weight fall to nothing."""
    cut: bool = True
    """Cut a rollout where its reliability is used up: what is behind bears no loss and is not computed. Off keeps it,
    at the least weight."""
    window: int | None = Field(default=None, ge=1)
    """Tokens sampled of each trajectory at first, and at least; None samples all. The window grows by `window_step`
    while a tenth of a batch is reliable to its end, and shrinks by as much after three batches that are not, which
    saves sampling and scoring too. Prune-OPD begins at 1024 of at most 12288."""
    window_step: int = Field(default=100, ge=1)
    """Tokens by which the window changes. A tenth of `window` follows the pair within some ten batches."""

    @property
    def is_on(self) -> bool:
        """Whether drift is measured."""
        return self.min_overlap is not None

    @model_validator(mode="after")
    def _goes_by_the_drift(self) -> Self:
        if self.window is not None and not self.is_on:
            raise ValueError(
                f"prune.window = {self.window} follows where rollouts drift, and prune.min_overlap is not set; set it, "
                "such as 0.7, or leave prune.window out"
            )
        return self
