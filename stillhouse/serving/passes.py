"""Forward passes of a transformers model over rows whose earlier tokens are in slots, and the tokens they sample.

The last token of each slot stays on the device, where the next pass reads it: the host launches a pass without having
seen what the one before sampled. Dimensions: B rows, S tokens of each row in one pass, T tokens of all rows, R padded
rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from stillhouse.serving.attention import Kernel, PackedLayout, kernel_for, slot_masks
from stillhouse.serving.graphs import RecordedPasses, Recorder, Shape, cuda_recorder, padded_rows
from stillhouse.serving.norms import FusedNorms
from stillhouse.serving.sampling import Draw, PickSteps, pick_tokens
from stillhouse.serving.score import UNSCALED, LogitScaling
from stillhouse.serving.slots import SlotCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_COLUMNS: Final = 256
"""Recorded passes with masks show attention a multiple of this many columns."""
_PADDING: Final = Draw(0.0)


class SlotPasses:
    """Feeds tokens to a model and keeps their keys and values in `cache`; the arguments are those of `Generator`."""

    def __init__(
        self, model: "PreTrainedModel", max_batch: int, recorder: Recorder | None, kernel: Kernel | None
    ) -> None:
        self._model = model
        self._config = model.config.get_text_config()
        self._device = model.device
        slot_masks(self._config, torch.zeros(1, 1, dtype=torch.long), 1)
        self._scaling = LogitScaling.of(model)
        self._kernel = kernel or kernel_for(model)
        self._norms = FusedNorms(model)
        self.cache = SlotCache(self._config.num_hidden_layers, self._device)
        if recorder is None and self._device.type == "cuda":
            recorder = cuda_recorder()
        self._recorded = None if recorder is None else RecordedPasses(recorder)
        max_rows = padded_rows(max_batch)
        if recorder is not None:
            # All slots at once, since passes are recorded anew whenever the buffers grow.
            self.cache.reserve(max_rows, 0)
        self._last_tokens = torch.zeros(max_rows, dtype=torch.long, device=self._device)
        """Token of each slot that the next decode pass feeds."""
        self._inputs = torch.zeros(1 + len(Draw._fields), max_rows, dtype=torch.float64, device=self._device)
        """Position and draw of each row of a recorded pass; padding rows have position -1."""
        self._allowed: Tensor | None = None
        """Tokens that each row of a pass may sample, bool [rows, V]; None until a row is constrained."""

    @property
    def is_recorded(self) -> bool:
        """Whether decode passes are recorded, so that the host should read them late."""
        return self._recorded is not None

    def decode(
        self,
        positions: Sequence[int],
        draws: Sequence[Draw],
        num_expected: int = 0,
        allowed: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Feeds the last token of each of the first slots, at `positions`, and samples the next.

        A recorded pass has room for the `num_expected` rows that will run soon. `allowed` are the tokens that each row
        may sample, bool [V] on the host, or None for all.

        Returns:
            Picks [2, B] (see `pick_tokens`), overwritten by the next call.
        """
        count = len(positions)
        steps = PickSteps.of(draws)._replace(are_constrained=self._constrain(allowed))
        if self._recorded is None:
            self.cache.reserve(count, max(positions) + 1)
            inputs = self._to_device(_table(positions, draws, count))
            picks = self._decode(inputs, max(positions) + 1, steps)
        else:
            rows = self._recorded.rows_for(max(count, num_expected))
            columns = -(-(max(positions) + 1) // _COLUMNS) * _COLUMNS if self._kernel is None else max(positions) + 1
            if self.cache.reserve(rows, columns):
                self._recorded.clear()
            shape = Shape(rows, columns if self._kernel is None else self.cache.num_columns, steps)
            inputs = self._inputs[:, :rows]
            inputs.copy_(self._to_device(_table(positions, draws, rows)))
            run = self._recorded.get(shape, lambda: self._decode(inputs, shape.columns, steps))
            picks = run()[:, :count]
        self._last_tokens[:count] = picks[0]
        return picks

    def feed(self, first_slot: int, tokens: Sequence[list[int]], starts: Sequence[int]) -> Tensor:
        """Logits [B, V] after the new `tokens` of the slots from `first_slot` on, which hold `starts` tokens before."""
        lengths = [len(row) for row in tokens]
        spans = list(zip(starts, lengths, strict=True))
        has_grown = self.cache.reserve(first_slot + len(tokens), max(start + length for start, length in spans))
        if has_grown and self._recorded is not None:
            self._recorded.clear()
        if self._kernel is not None:
            return self._feed_packed(first_slot, tokens, spans)
        width = max(lengths)
        self.cache.target_rows(first_slot, starts, lengths)
        # A padding token takes position 0 and so sees its slot's first token: harmless, and never an empty softmax.
        padded = [[0] * (width - len(row)) + row for row in tokens]
        positions = [[0] * (width - length) + list(range(start, start + length)) for start, length in spans]
        hidden_BSH = self._hidden(
            torch.tensor(padded, device=self._device), torch.tensor(positions, device=self._device)
        )
        return self._logits(hidden_BSH[:, -1])

    def pick(
        self, first_slot: int, logits_BV: Tensor, draws: Sequence[Draw], allowed: Sequence[Tensor | None] = ()
    ) -> Tensor:
        """Samples the next token of each slot from `first_slot` on; picks [2, B]."""
        inputs = self._to_device(_table([0] * len(draws), draws, len(draws)))
        steps = PickSteps.of(draws)._replace(are_constrained=self._constrain(allowed))
        picks = self._pick(logits_BV, inputs, steps)
        self._last_tokens[first_slot : first_slot + len(draws)] = picks[0]
        return picks

    def swap_slots(self, first: int, second: int, num_columns: int) -> None:
        """Exchanges what two slots hold in their first columns, and their last tokens."""
        self.cache.swap_slots(first, second, num_columns)
        # Indexing by a list would synchronise with the device.
        token = self._last_tokens[first].clone()
        self._last_tokens[first] = self._last_tokens[second]
        self._last_tokens[second] = token

    def close(self) -> None:
        """Frees the memory; nothing can be fed afterwards."""
        self._recorded = None
        self.cache.layers.clear()

    def _constrain(self, allowed: Sequence[Tensor | None]) -> bool:
        """Puts the tokens that rows may sample where passes read them; returns whether any row is constrained."""
        given = next((row for row in allowed if row is not None), None)
        if given is None:
            return False
        if self._allowed is None:
            self._allowed = torch.ones(len(self._last_tokens), len(given), dtype=torch.bool, device=self._device)
        rows = torch.stack([torch.ones_like(given) if row is None else row for row in allowed])
        self._allowed[: len(rows)].copy_(self._to_device(rows))
        self._allowed[len(rows) :] = True
        return True

    def _pick(self, logits_BV: Tensor, inputs: Tensor, steps: PickSteps) -> Tensor:
        allowed = self._allowed[: len(logits_BV)] if steps.are_constrained and self._allowed is not None else None
        return pick_tokens(logits_BV, inputs[1:], steps, allowed)

    def _to_device(self, tensor: Tensor) -> Tensor:
        """Copies a host tensor to the device without waiting for its queue."""
        if self._device.type != "cuda":
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _feed_packed(self, first_slot: int, tokens: Sequence[list[int]], spans: Sequence[tuple[int, int]]) -> Tensor:
        starts, lengths = zip(*spans, strict=True)
        layout = PackedLayout.of_rows(first_slot, starts, lengths, self.cache.num_columns)
        positions = [position for start, length in spans for position in range(start, start + length)]
        slots = torch.arange(first_slot, first_slot + len(lengths)).repeat_interleave(torch.tensor(lengths))
        fed = torch.tensor([[token for row in tokens for token in row], positions])
        fed = self._to_device(torch.cat([fed, (slots * self.cache.num_columns + fed[1])[None]]))
        query_starts, key_starts, key_lengths = map(self._to_device, layout[:3])
        layout = PackedLayout(query_starts, key_starts, key_lengths, layout.max_queries, layout.max_keys)
        self.cache.target_all_slots(fed[2])
        hidden_1TH = self._hidden(fed[:1], fed[1:2], layout)
        return self._logits(hidden_1TH[0].index_select(0, layout.query_starts[1:] - 1))

    def _decode(self, inputs: Tensor, num_columns: int, steps: PickSteps) -> Tensor:
        """Picks [2, R]; inputs are position and draw of each row."""
        rows = inputs.shape[1]
        tokens_R = self._last_tokens[:rows]
        slots_R = torch.arange(rows, device=self._device)
        positions_R = inputs[0].long()
        targets_R = (slots_R * self.cache.num_columns + positions_R).where(positions_R >= 0, self.cache.spare_target)
        positions_R = positions_R.clamp_min(0)
        if self._kernel is None:
            self.cache.target_columns(targets_R, num_columns)
            hidden_RH = self._hidden(tokens_R[:, None], positions_R[:, None])[:, -1]
        else:
            self.cache.target_all_slots(targets_R)
            layout = PackedLayout.of_decoding(positions_R, self.cache.num_columns)
            hidden_RH = self._hidden(tokens_R[None], positions_R[None], layout)[0]
        return self._pick(self._logits(hidden_RH), inputs, steps)

    def _hidden(self, input_ids: Tensor, positions: Tensor, layout: PackedLayout | None = None) -> Tensor:
        """Last hidden states of [B, S] tokens; of [1, T] tokens of a packed row, if `layout` is given."""
        arguments: dict[str, Any] = {}
        if layout is None:
            mask = slot_masks(self._config, positions, self.cache.columns_in_use, self._model.dtype)
        else:
            # Given a four-dimensional placeholder, transformers builds no mask.
            mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self._device)
            arguments = {"layout": layout, "kernel": self._kernel}
        with self._norms.in_use():
            return self._model.get_decoder()(
                input_ids=input_ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=self.cache,
                use_cache=True,
                **arguments,
            ).last_hidden_state

    def _logits(self, hidden_BH: Tensor) -> Tensor:
        # `logits_to_keep` would multiply row by row where the output layer is frozen.
        logits_BV = self._model.get_output_embeddings()(hidden_BH)
        if self._scaling == UNSCALED:
            return logits_BV
        # As training scales them: not rounded to the type of the products a second time.
        return self._scaling.apply_(logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)))


def _table(positions: Sequence[int], draws: Sequence[Draw], num_rows: int) -> Tensor:
    """Position and draw of each row, float64 [5, R], on the host; padding rows have position -1."""
    rows = [(position, *draw) for position, draw in zip(positions, draws, strict=True)]
    rows += [(-1, *_PADDING)] * (num_rows - len(rows))
    return torch.tensor(rows, dtype=torch.float64).T.contiguous()
