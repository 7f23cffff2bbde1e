"""A key/value cache whose rows ("slots") are filled, extended and moved independently.

Position p of a slot's sequence lies at column p of its row, for every row, so a batch of sequences of any lengths needs
no padding in the cache, a decode step writes one column a row, and a finished sequence frees its row without the others
being copied. transformers' own DynamicCache copies all keys and values at every step and has to be re-padded whenever a
sequence joins or leaves.

Shapes: K/V buffers are [slots + 1, columns, heads, head_dim], where the last slot is written and never read; what a
layer hands to attention is [batch, heads, columns, head_dim], a view.
"""

from collections.abc import Sequence
from typing import Final

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_MIN_COLUMNS: Final = 128


class SlotLayer(CacheLayerMixin):
    """One layer's buffers; which rows and columns a forward pass touches is set in its `SlotCache` beforehand."""

    def __init__(self, cache: "SlotCache") -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocates buffers for states of these shapes [batch, heads, new, head_dim]."""
        size = (self._cache.num_slots + 1, self._cache.num_columns)
        self.keys = key_states.new_zeros(*size, key_states.shape[1], key_states.shape[3])
        self.values = value_states.new_zeros(*size, value_states.shape[1], value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new states and returns all states of the rows in use, [batch, heads, columns, head_dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        aim = self._cache
        rows = states.transpose(1, 2).flatten(0, 1)
        if aim.source is not None:
            rows = rows.index_select(0, aim.source)
        buffer.flatten(0, 1).index_copy_(0, aim.target, rows)
        return buffer[aim.first_slot : aim.first_slot + len(states), : aim.columns_in_use].transpose(1, 2)

    def resize(self, num_slots: int, num_columns: int) -> None:
        """Grows the buffers, keeping what is in them."""
        if not self.is_initialized:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(num_slots + 1, num_columns, *old.shape[2:])
            new[: old.shape[0] - 1, : old.shape[1]] = old[:-1]
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what attention sees."""
        return self._cache.columns_in_use, 0

    def get_seq_length(self) -> int:
        """Columns attention sees; a slot's own length is known to the generator only."""
        return self._cache.columns_in_use

    def get_max_length(self) -> int:
        """-1: grows as needed."""
        return -1


class SlotCache(Cache):
    """Slots for a model of `num_layers` attention layers on `device`."""

    def __init__(self, num_layers: int, device: torch.device) -> None:
        self.num_slots = 0
        self.num_columns = 0
        self.first_slot = 0
        self.columns_in_use = 0
        self.source: torch.Tensor | None = None
        self.target = torch.empty(0, dtype=torch.long, device=device)
        self.device = device
        super().__init__(layers=[SlotLayer(self) for _ in range(num_layers)])

    @property
    def spare_target(self) -> int:
        """A place for keys and values that nobody reads."""
        return self.num_slots * self.num_columns

    def reserve(self, num_slots: int, num_columns: int) -> bool:
        """Makes room for at least so many slots and columns; columns at least double when they grow.

        Returns:
            Whether there had been less, so that the buffers are others now.
        """
        if num_slots <= self.num_slots and num_columns <= self.num_columns:
            return False
        if num_columns > self.num_columns:
            self.num_columns = max(_MIN_COLUMNS, num_columns, 2 * self.num_columns)
        self.num_slots = max(self.num_slots, num_slots)
        for layer in self.layers:
            layer.resize(self.num_slots, self.num_columns)
        return True

    def aim(self, first_slot: int, starts: Sequence[int], lengths: Sequence[int]) -> None:
        """Directs the next forward pass.

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

    def aim_at(self, targets: torch.Tensor, num_columns: int) -> None:
        """Directs the next forward pass, of one token for each slot from the first on.

        Args:
            targets: [rows], slot * `num_columns` of the buffers + position; read when the pass writes.
            num_columns: that attention sees.
        """
        self.first_slot, self.columns_in_use = 0, num_columns
        self.source, self.target = None, targets

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], num_columns: int) -> None:
        """Overwrites the first columns of each slot of `targets` with those of the slot beside it in `sources`."""
        rows = torch.tensor([sources, targets], device=self.device)
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                buffer[rows[1], :num_columns] = buffer[rows[0], :num_columns]

    def swap_slots(self, one: int, other: int, num_columns: int) -> None:
        """Exchanges the first columns of two slots."""
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                kept = buffer[one, :num_columns].clone()
                buffer[one, :num_columns] = buffer[other, :num_columns]
                buffer[other, :num_columns] = kept
