"""What some families of models do to the logits behind their output layer."""

from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class LogitScaling(NamedTuple):
    """A factor on the logits (Cohere; Granite has a divisor) and a soft cap, cap * tanh(logits / cap) (Gemma)."""

    factor: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, model: "PreTrainedModel") -> Self:
        """That of the model's own forward pass."""
        config = model.config.get_text_config()
        return cls(
            getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0),
            getattr(config, "final_logit_softcapping", None),
        )

    def apply_(self, logits: "Tensor") -> "Tensor":
        """Scales logits of any shape in place, and returns them."""
        if self.factor != 1.0:
            logits *= self.factor
        if self.cap is not None:
            logits.div_(self.cap).tanh_().mul_(self.cap)
        return logits


UNSCALED: Final = LogitScaling()
"""Logits as the output layer makes them."""
