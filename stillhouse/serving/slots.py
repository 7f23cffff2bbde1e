"""A key/value cache whose rows ("slots") are filled, extended and moved independently.

Position p of a slot's sequence lies at column p of its row, so that sequences of any lengths need no padding, a decode
step writes one column a row, and a finished sequence frees its row without the others being copied. (transformers'
DynamicCache copies all keys and values at every step.) Buffers are [slots, columns, heads, head_dim]; a layer hands
attention a view [batch, heads, columns, head_dim].
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from stillhouse.attention.segments import computed_type

if TYPE_CHECKING:
    from stillhouse.serving.gguf import SequenceCache

_MIN_COLUMNS: Final = 1024
"""Columns of the first buffers, where no sequence is known to be shorter."""


class SlotLayer(CacheLayerMixin):
    """One layer's buffers; which rows and columns a forward pass touches is set in its `SlotCache` beforehand."""

    def __init__(self, cache: "SlotCache") -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate buffers for states of these shapes [batch, heads, new, head_dim]."""
        size = (self._cache.num_slots, self._cache.num_columns)
        # Under autocast, states of a wider type would be converted at every step again, all of them.
        self.keys, self.values = (
            states.new_zeros(*size, states.shape[1], states.shape[3], dtype=computed_type(states))
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new states and return all states of the rows in use, [batch, heads, columns, head_dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        cache = self._cache
        rows = states.transpose(1, 2).flatten(0, 1)
        if cache.source is not None:
            rows = rows.index_select(0, cache.source)
        buffer.flatten(0, 1).index_copy_(0, cache.target, rows.to(buffer.dtype))
        return buffer[cache.first_slot : cache.first_slot + len(states), : cache.columns_in_use].transpose(1, 2)

    def resize(self, num_slots: int, num_columns: int) -> None:
        if not self.is_initialized:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(num_slots, num_columns, *old.shape[2:])
            new[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number and offset of the columns visible to attention."""
        return self._cache.columns_in_use, 0

    def get_seq_length(self) -> int:
        """Return the columns visible to attention; only the generator knows the length of each slot."""
        return self._cache.columns_in_use

    def get_max_length(self) -> int:
        """Return -1: it grows as needed."""
        return -1


class SlotCache(Cache):
    """Slots for a model of `num_layers` attention layers on `device`."""

    def __init__(self, num_layers: int, device: torch.device) -> None:
        self.num_slots = 0
        self.num_columns = 0
        self.first_slot = 0
        self.columns_in_use = 0
        self.longest: int | None = None
        """Upper bound of the columns that any sequence needs; None if unknown."""
        self.source: torch.Tensor | None = None
        self.target = torch.empty(0, dtype=torch.long, device=device)
        self.device = device
        super().__init__(layers=[SlotLayer(self) for _ in range(num_layers)])

    def reserve(self, num_slots: int, num_columns: int) -> None:
        """Grow to at least so many slots and columns; columns double up to `longest`."""
        if num_slots <= self.num_slots and num_columns <= self.num_columns:
            return
        if num_columns > self.num_columns:
            grown = max(_MIN_COLUMNS, 2 * self.num_columns)
            self.num_columns = max(num_columns, grown if self.longest is None else min(grown, self.longest))
        self.num_slots = max(self.num_slots, num_slots)
        for layer in self.layers:
            layer.resize(self.num_slots, self.num_columns)

    def target_rows(self, first_slot: int, starts: Sequence[int], lengths: Sequence[int]) -> None:
        """Set where the next forward pass writes.

        Row i of its input, left-padded to the longest, holds `lengths[i]` new tokens for the columns from `starts[i]`
        of slot `first_slot + i`.
        """
        width = max(lengths)
        self.first_slot = first_slot
        self.columns_in_use = max(start + length for start, length in zip(starts, lengths, strict=True))
        source: list[int] = []
        target: list[int] = []
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            source.extend(range((row + 1) * width - length, (row + 1) * width))
            column = (first_slot + row) * self.num_columns + start
            target.extend(range(column, column + length))
        self.target = torch.tensor(target, device=self.device)
        is_padded = len(source) < width * len(lengths)
        self.source = torch.tensor(source, device=self.device) if is_padded else None

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], num_columns: int) -> None:
        """Overwrite the first columns of each slot of `targets` with those of the slot beside it in `sources`."""
        rows = torch.tensor([sources, targets], device=self.device)
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                buffer[rows[1], :num_columns] = buffer[rows[0], :num_columns]

    def swap_slots(self, first: int, second: int, num_columns: int) -> None:
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                states = buffer[first, :num_columns].clone()
                buffer[first, :num_columns] = buffer[second, :num_columns]
                buffer[second, :num_columns] = states


class SlotTable:
    """Knows the tokens of parked slots and finds the one that a prompt continues.

    Slots 0..n-1 belong to the n running rows (the generator keeps them dense); slots from n on are parked or free.
    """

    def __init__(self, cache: "SlotCache | SequenceCache") -> None:
        self._cache = cache
        self._parked: dict[int, list[int]] = {}
        """Slot to the tokens whose keys and values it holds, longest parked first."""

    def take(self, slot: int, prompt_ids: Sequence[int], running: Sequence[Sequence[int]] = ()) -> int:
        """Prepare `slot`, the first behind the running rows, for a prompt.

        A parked sequence that the prompt continues is moved there; one that diverges, or still runs, is copied up to
        the common prefix. The last prompt token is always fed again, since its logits are needed.

        Returns:
            Number of leading prompt tokens that the slot holds already.
        """
        self._cache.reserve(slot + 1, 1)
        match, num_held = self.best(prompt_ids, running)
        if match is not None and len(self._parked.get(match, ())) == num_held:
            tokens = self._parked.pop(match)
            if match != slot:
                displaced = self._parked.pop(slot, [])
                self._cache.swap_slots(match, slot, max(len(tokens), len(displaced)))
                if displaced:
                    self._parked[match] = displaced
        elif match == slot:
            del self._parked[slot]
        else:
            self.vacate(slot)
            # `vacate` may have moved or evicted the match.
            match, num_held = self.best(prompt_ids, running)
            if match is not None:
                self._cache.copy_slots([match], [slot], num_held)
        return num_held

    def park(self, slot: int, tokens: list[int]) -> None:
        """Record that `slot`, just behind the running rows, holds these tokens of a finished sequence."""
        if tokens:
            self._parked[slot] = tokens

    def forget(self) -> None:
        """Drop all parked slots, whose keys and values are those of old weights."""
        self._parked.clear()

    def best(self, prompt_ids: Sequence[int], running: Sequence[Sequence[int]] = ()) -> tuple[int | None, int]:
        """Return the slot with the longest common prefix, and its length; (None, 0) if none matches.

        Only sequences that are a prefix of the prompt, or the reverse, match. `running` are the prompts of slots 0, 1,
        ...
        """
        prompt = list(prompt_ids)
        best: tuple[int | None, int] = (None, 0)
        for slot, held in (*self._parked.items(), *enumerate(running)):
            length = min(len(held), len(prompt) - 1)
            if length > best[1] and held[length - 1] == prompt[length - 1] and list(held[:length]) == prompt[:length]:
                best = slot, length
        return best

    def vacate(self, slot: int) -> None:
        """Move the sequence parked in `slot` to a free slot, or over the one parked longest."""
        if slot not in self._parked:
            return
        free = next((other for other in range(slot + 1, self._cache.num_slots) if other not in self._parked), None)
        target = free if free is not None else next(iter(self._parked))
        tokens = self._parked.pop(slot)
        if target != slot:
            self._parked[target] = tokens
            self._cache.copy_slots([slot], [target], len(tokens))
