"""Microbatches: the tensors of one forward pass, with samples packed into one row or padded to a rectangle.

Padding is on the right and attention is causal, so no real token sees a padded one and no attention mask is needed.
Dimensions: B rows, T time, N loss positions, S samples.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from stillhouse.attention.segments import Segments
from stillhouse.types import Sample

SampleT = TypeVar("SampleT", bound=Sample)
TokenValues = Callable[[Sample], Mapping[str, Sequence[float] | np.ndarray | None]]


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Input of one forward pass: one packed row, or a rectangle of padded rows."""

    inputs_BT: Tensor
    """The tokens of each sample before its last target."""
    position_ids_BT: Tensor
    """Positions in the sample, from 0."""
    segments: Segments | None
    """Positions of the samples in the packed row; None for a rectangle."""
    target_places_N: Tensor
    """Indices into the flattened [B, T] of the positions that predict a target, sample by sample."""
    targets_N: Tensor
    """The token that each of them predicts."""
    values: dict[str, Tensor]
    """float32 [N] by name: the method's values of each target."""

    @property
    def num_slots(self) -> int:
        """Return the number of inputs, padding included."""
        return self.inputs_BT.numel()


def num_targets(samples: Sequence[Sample]) -> int:
    return sum(int(np.count_nonzero(sample.loss_mask)) for sample in samples)


def num_inputs(sample: Sample) -> int:
    """Return the number of tokens up to the one that predicts the last target, which go through the model.

    Raises:
        ValueError: there is no target, the mask has another length than the tokens, or it marks the first token.
    """
    if len(sample.loss_mask) != len(sample.token_ids):
        raise ValueError(
            f"prompt {sample.prompt_id}: {len(sample.token_ids)} tokens but a loss mask of {len(sample.loss_mask)}"
        )
    targets = np.flatnonzero(sample.loss_mask)
    if not len(targets):
        raise ValueError(f"prompt {sample.prompt_id}: no token is a target; leave the sample out")
    if not targets[0]:
        raise ValueError(f"prompt {sample.prompt_id}: the first token is marked as a target, but nothing predicts it")
    return int(targets[-1])


def microbatch_groups(
    samples: Sequence[SampleT], max_tokens: int, *, packing: bool, partition: Callable[[SampleT], str] = lambda _: ""
) -> list[list[SampleT]]:
    """Return groups of samples, each for one forward pass over at most `max_tokens` tokens, padding included.

    A longer sample is alone in its group. Samples without a target are left out, and samples for which `partition`
    returns different values never share a group. Deterministic, so that every process gets the same groups.
    """
    parts: dict[str, list[SampleT]] = {}
    for sample in samples:
        if np.any(sample.loss_mask):
            parts.setdefault(partition(sample), []).append(sample)
    groups: list[list[SampleT]] = []
    for part in parts.values():
        lengths = [num_inputs(sample) for sample in part]
        group_indices = best_fit_decreasing(lengths, max_tokens) if packing else _rectangles(lengths, max_tokens)
        groups += ([part[index] for index in indices] for indices in group_indices)
    return groups


def _rectangles(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Return groups of indices, sorted by length so that little is padded."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if groups and (len(groups[-1]) + 1) * lengths[index] <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def collate(samples: Sequence[Sample], token_values: TokenValues, device: torch.device, *, packing: bool) -> Microbatch:
    """Return the microbatch of `samples`, at least one, each with at least one target: a packed row or a rectangle.

    `token_values` returns the method's values of a sample by name, one for each of its `token_ids`.

    Raises:
        ValueError: as `num_inputs`; or a list of values has another length than the tokens, or samples have values of
            different names.
    """
    lengths = [num_inputs(sample) for sample in samples]
    width = sum(lengths) if packing else max(lengths)
    firsts = np.cumsum([0, *lengths[:-1]]) if packing else np.arange(len(samples)) * width
    inputs = np.zeros((1 if packing else len(samples)) * width, dtype=np.int64)
    position_ids = np.zeros_like(inputs) if packing else np.tile(np.arange(width), len(samples))
    places, targets = [], []
    for sample, first, length in zip(samples, firsts, lengths, strict=True):
        tokens, indices = np.asarray(sample.token_ids), np.flatnonzero(sample.loss_mask)
        inputs[first : first + length] = tokens[:length]
        position_ids[first : first + length] = np.arange(length)
        places.append(first + indices - 1)
        targets.append(tokens[indices])
    return Microbatch(
        inputs_BT=_on_device(inputs, device).view(-1, width),
        position_ids_BT=_on_device(position_ids, device).view(-1, width),
        segments=_segments(lengths, device) if packing else None,
        target_places_N=_on_device(np.concatenate(places), device),
        targets_N=_on_device(np.concatenate(targets), device),
        values={name: _on_device(values, device) for name, values in _at_targets(samples, token_values).items()},
    )


def idle_microbatch(names: Iterable[str], device: torch.device, *, packing: bool) -> Microbatch:
    """Return a microbatch of one token without a target, for a process that has no sample left when others do."""
    nothing_N = torch.zeros(0, dtype=torch.int64, device=device)
    token_BT = torch.zeros((1, 1), dtype=torch.int64, device=device)
    segments = _segments([1], device) if packing else None
    return Microbatch(token_BT, token_BT, segments, nothing_N, nothing_N, {name: nothing_N.float() for name in names})


def _segments(lengths: Sequence[int], device: torch.device) -> Segments:
    starts = _on_device(np.cumsum([0, *lengths], dtype=np.int32), device)
    return Segments(starts, tuple(lengths), max(lengths))


def _on_device(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    # A copy from memory that is not pinned would wait for all pending work of the GPU.
    return tensor.pin_memory().to(device, non_blocking=True)


def _at_targets(samples: Sequence[Sample], token_values: TokenValues) -> dict[str, np.ndarray]:
    """Return the values of all targets, aligned with `Microbatch.targets_N`."""
    columns: dict[str, list[np.ndarray]] = {}
    for number, sample in enumerate(samples):
        by_name, places = token_values(sample), np.flatnonzero(sample.loss_mask)
        if number and by_name.keys() != columns.keys():
            raise ValueError(
                f"prompt {sample.prompt_id}: per-token values {sorted(by_name)}, but {sorted(columns)} of the samples "
                "before it; expected the same of every sample"
            )
        for name, values in by_name.items():
            if values is None or len(values) != len(sample.token_ids):
                seen = "no" if values is None else str(len(values))
                raise ValueError(
                    f"prompt {sample.prompt_id}: {len(sample.token_ids)} tokens but {seen} values of {name!r}"
                )
            columns.setdefault(name, []).append(np.asarray(values)[places].astype(np.float32))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def best_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Return bins of indices into `sizes`, each with a sum of at most `capacity`; a larger item is alone in its bin.

    Items are taken from the largest to the smallest, equal ones in their order, and each goes where it leaves the least
    room. That needs at most 11/9 of the fewest bins possible, and 6/9 of a bin more (Dosa, Li, Han, Tuza 2013, for
    first fit decreasing, whose bound best fit decreasing shares: Johnson 1974). O(n log n) comparisons.
    """
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # room left in a bin, and the bin's index, ascending
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size = sizes[index]
        place = bisect_left(rooms, (size, 0))
        if place < len(rooms):
            room, number = rooms.pop(place)
        else:
            room, number = capacity, len(bins)
            bins.append([])
        bins[number].append(index)
        if room > size:
            insort(rooms, (room - size, number))
    return bins
