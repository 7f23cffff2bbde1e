"""The part of a causal language model below its output layer."""

from typing import Any

from transformers import PreTrainedModel

from stillhouse.errors import TrainingError


def backbone_of(causal_lm: PreTrainedModel) -> Any:
    """Return the module whose `last_hidden_state` the output layer is applied to.

    Raises:
        TrainingError: the family has none that takes tokens alone.
    """
    backbone = causal_lm.base_model
    if backbone is causal_lm:
        # Text models taken out of one for images go by its prefix (Llama 4, Mllama).
        backbone = causal_lm.get_submodule("model")
    try:
        backbone.get_input_embeddings()
    except NotImplementedError:
        raise TrainingError(
            f"{type(causal_lm).__name__}: it is the decoder of a model with an encoder, which cannot be trained here; "
            "take a decoder-only model"
        ) from None
    return backbone
