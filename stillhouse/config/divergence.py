"""How far the student is from a teacher's distribution: a term of on-policy distillation's loss."""

from typing import Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.section import Section


class Divergence(Section):
    """One term of an exact divergence between student and teacher over the vocabulary."""

    kind: Literal["reverse_kl", "forward_kl", "jsd", "skewed_reverse_kl", "skewed_forward_kl"] = "reverse_kl"
    """KL(student || teacher), KL(teacher || student), the generalised Jensen-Shannon divergence, or the KL to a mixture
    of both. `reverse_kl` first: it learns what the teacher finds likely; `forward_kl` covers all that the teacher might
    say, `jsd` lies between."""
    weight: float = Field(default=1.0, gt=0.0)
    """Factor of the term. With a single term it acts like a higher learning rate: leave it at 1."""
    beta: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of the teacher in the mixture of `jsd`; 0.5 is the default of TRL's GKD and of ms-swift."""
    skew: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the first distribution of a skewed KL in its mixture with the second; 0.1 is DistiLLM's."""
    top_k: int | None = Field(default=None, ge=1)
    """Compare the k most probable tokens, and all others as one. None compares all, and is exact; with a server it
    compares the tokens that this gives (the teacher's `top_k`). 64 is NeMo-RL's and ROLL's."""
    top_k_of: Literal["teacher", "student"] = "teacher"
    """Whose most probable tokens. `teacher` for `forward_kl`, `student` for `reverse_kl`: the side whose probabilities
    weigh the sum. A server gives the teacher's alone."""
    tail: bool = True
    """Count the mass outside the k tokens as one more token. Without it, which is for `reverse_kl` and `forward_kl` of
    local teachers, the sum is no divergence and can collapse."""

    @model_validator(mode="after")
    def _left_out_of_a_plain_kl(self) -> Self:
        if not self.tail and self.kind not in ("reverse_kl", "forward_kl"):
            raise ValueError(f"tail: false is for reverse_kl and forward_kl, saw kind {self.kind!r}; leave it out")
        return self

    @property
    def fits_a_server(self) -> bool:
        """Whether a teacher's most probable tokens and the mass of all others are enough for it."""
        return self.tail and (self.top_k is None or self.top_k_of == "teacher")
