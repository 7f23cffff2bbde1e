"""Forward passes of a transformers model over rows whose earlier tokens are in slots.

Dimensions: B rows, S tokens of each row in one pass, V vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from stillhouse.serving.attention import slot_masks
from stillhouse.serving.graphs import RecordedDecoding, Recorder, cuda_recorder, padded_rows
from stillhouse.serving.logits import LogitScaling
from stillhouse.serving.slots import SlotCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SlotPasses:
    """Feeds tokens to a model and keeps their keys and values in `cache`.

    Args:
        model: In evaluation mode.
        max_batch: Rows at most.
        recorder: How decode passes are recorded to be replayed; None records them on CUDA, and nowhere else.

    Raises:
        ValueError: If the model attends in a way slots cannot serve (see `slot_masks`).
    """

    def __init__(self, model: "PreTrainedModel", max_batch: int, recorder: Recorder | None) -> None:
        self._model = model
        self._config = model.config.get_text_config()
        slot_masks(self._config, torch.zeros(1, 1, dtype=torch.long), 1)
        self._scaling = LogitScaling.of(model)
        self.cache = SlotCache(self._config.num_hidden_layers, model.device)
        if recorder is None and model.device.type == "cuda":
            recorder = cuda_recorder()
        self._recorded: RecordedDecoding | None = None
        if recorder is not None:
            # At once, since passes are recorded anew whenever the buffers grow.
            self.cache.reserve(padded_rows(max_batch), 1)
            self._recorded = RecordedDecoding(self._run, self.cache, recorder)

    def decode(self, token_ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Logits [B, V] after one more token of each of the first slots, overwritten by the next call."""
        if self._recorded is not None:
            return self._recorded.logits(token_ids, positions)
        return self.feed(0, [[token] for token in token_ids], positions)

    def feed(self, first_slot: int, tokens: Sequence[list[int]], starts: Sequence[int]) -> torch.Tensor:
        """Logits [B, V] after the last of the new tokens of each slot from `first_slot` on.

        Args:
            first_slot: Of the first row.
            tokens: The new ones of each row; lengths may differ.
            starts: Tokens that each slot holds already.
        """
        lengths = [len(row) for row in tokens]
        width = max(lengths)
        spans = list(zip(starts, lengths, strict=True))
        self.cache.reserve(first_slot + len(tokens), max(start + length for start, length in spans))
        self.cache.aim(first_slot, starts, lengths)
        # A padding token takes position 0 and so sees its slot's first token: harmless, and never an empty softmax.
        padded = [[0] * (width - len(row)) + row for row in tokens]
        positions = [[0] * (width - length) + list(range(start, start + length)) for start, length in spans]
        device = self._model.device
        return self._run(torch.tensor(padded, device=device), torch.tensor(positions, device=device))

    def close(self) -> None:
        """Gives back the memory; nothing can be fed any more."""
        self._recorded = None
        self.cache.layers.clear()

    def _run(self, input_ids_BS: torch.Tensor, positions_BS: torch.Tensor) -> torch.Tensor:
        hidden_BSH = self._model.get_decoder()(
            input_ids=input_ids_BS,
            attention_mask=slot_masks(self._config, positions_BS, self.cache.columns_in_use, self._model.dtype),
            position_ids=positions_BS,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        # Not by the model's own `logits_to_keep`, which multiplies row by row where the output layer is frozen.
        return self._scaling.apply_(self._model.get_output_embeddings()(hidden_BSH[:, -1]))
