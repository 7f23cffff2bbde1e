"""Forward passes of a transformers model over rows whose earlier tokens are in slots.

Dimensions: B rows, S tokens of each row in one pass, V vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from stillhouse.attention import ATTENTION
from stillhouse.serving.score import UNSCALED, LogitScaling, RankedToken, rank_tokens
from stillhouse.serving.slots import SlotCache

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


_KINDS: Final = frozenset({"full_attention", "sliding_attention"})
_IMPLEMENTATIONS: Final = frozenset({ATTENTION, "sdpa", "eager"})


class SlotPasses:
    """Feeds tokens to a model and keeps their keys and values in `cache`.

    Raises ValueError if the model's attention cannot be served from slots (see `slot_masks`).
    """

    def __init__(self, model: "PreTrainedModel", max_batch: int) -> None:
        self._model = model
        self.max_batch = max_batch
        self._config = model.config.get_text_config()
        self._device = model.device
        slot_masks(self._config, torch.zeros(1, 1, dtype=torch.long), 1)
        self._scaling = LogitScaling.of(model)
        self.cache = SlotCache(self._config.num_hidden_layers, self._device)
        self.context_length: int = self._config.max_position_embeddings
        """Most tokens of prompt and completion together."""
        self.vocab_size: int = self._config.vocab_size

    @property
    def may_change(self) -> bool:
        """Return whether weights may be trained between requests."""
        return any(parameter.requires_grad for parameter in self._model.parameters())

    @property
    def is_training(self) -> bool:
        return self._model.training

    def feed(self, first_slot: int, tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Return logits [B, V] after the new `tokens` of the slots from `first_slot` on, which hold `starts` before."""
        lengths = [len(row) for row in tokens]
        spans = list(zip(starts, lengths, strict=True))
        self.cache.reserve(first_slot + len(tokens), max(start + length for start, length in spans))
        self.cache.target_rows(first_slot, starts, lengths)
        width = max(lengths)
        # A padding token takes position 0 and so sees its slot's first token: harmless, and never an empty softmax.
        padded = [[0] * (width - len(row)) + [*row] for row in tokens]
        positions = [[0] * (width - length) + list(range(start, start + length)) for start, length in spans]
        positions_BS = torch.tensor(positions, device=self._device)
        hidden_BSH = self._model.get_decoder()(
            input_ids=torch.tensor(padded, device=self._device),
            attention_mask=slot_masks(self._config, positions_BS, self.cache.columns_in_use, self._model.dtype),
            position_ids=positions_BS,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        # `logits_to_keep` would multiply row by row where the output layer is frozen.
        logits_BV = self._model.get_output_embeddings()(hidden_BSH[:, -1])
        if self._scaling == UNSCALED:
            return logits_BV
        # As training scales them: not rounded to the type of the products a second time.
        return self._scaling.apply_(logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)))

    def rank(
        self, sequences: Sequence[Sequence[int]], num_top: int, *, temperature: float = 1.0
    ) -> list[list[RankedToken]]:
        """Return what `rank_tokens` does."""
        return rank_tokens(self._model, sequences, num_top, temperature=temperature)

    def clear(self) -> None:
        """Free keys and values; nothing can be fed afterwards."""
        self.cache.layers.clear()


def slot_masks(
    config: "PreTrainedConfig", positions_BS: Tensor, num_columns: int, dtype: torch.dtype = torch.float32
) -> Tensor | dict[str, Tensor]:
    """Return masks by which the token at position p of a slot sees that slot's columns up to p: the ready-made 4D
    `attention_mask` of a transformers model, [B, 1, S, num_columns].

    One mask when all layers attend alike; one by layer type when full and sliding layers alternate. `positions_BS` are
    the positions of the input tokens in their slots, `num_columns` the columns of the cache that attention sees, and
    `dtype` is the model's, which an additive mask (eager attention) must have. Raise ValueError if a layer is neither
    full nor sliding attention (recurrent states cannot be cut into slots), or the attention implementation takes no
    mask.
    """
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not hasattr(config, "layer_types") and getattr(config, "sliding_window", None):
        kinds = {"sliding_attention"}
    implementation = config._attn_implementation
    if not kinds <= _KINDS or implementation not in _IMPLEMENTATIONS:
        raise ValueError(
            f"model type {config.model_type!r} has layers {sorted(kinds)} and attention {implementation!r}; "
            f"expected layers of {sorted(_KINDS)} and attention of {sorted(_IMPLEMENTATIONS)}"
        )
    column = torch.arange(num_columns, device=positions_BS.device)
    position = positions_BS[:, None, :, None]
    masks: dict[str, Tensor] = {"full_attention": column <= position}
    if "sliding_attention" in kinds:
        masks["sliding_attention"] = masks["full_attention"] & (column > position - config.sliding_window)
    if implementation == "eager":
        lowest = torch.finfo(dtype).min
        masks = {
            kind: torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, lowest)
            for kind, mask in masks.items()
        }
    return masks[next(iter(kinds))] if len(kinds) == 1 else masks
