"""Samples into the tensors of one forward pass.

Dimensions: B samples, T time, N loss positions. Padding stands on the right and attention is causal, so no real token
sees a padded one and no attention mask is needed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from stillhouse.types import Sample

SampleT = TypeVar("SampleT", bound=Sample)


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Samples of similar length in one rectangle."""

    samples: Sequence[Sample]
    inputs_BT: Tensor
    """Every token but each row's last, cut behind the last position that has a loss."""
    positions_N: Tensor
    """Indices into the flattened [B, T] of the positions that predict a target, row by row."""
    targets_N: Tensor
    """The token each of them is to predict."""

    def at_targets(self, values_of: Callable[[Sample], Sequence[float] | None]) -> Tensor:
        """One float32 per loss position, aligned with `targets_N`.

        Args:
            values_of: a per-token list of a sample, aligned with its `token_ids`.

        Raises:
            ValueError: a sample has no such list, or one of another length.
        """
        flat: list[float] = []
        for sample in self.samples:
            values = values_of(sample)
            if values is None or len(values) != len(sample.token_ids):
                seen = "none" if values is None else str(len(values))
                raise ValueError(
                    f"prompt {sample.prompt_id}: {len(sample.token_ids)} tokens but {seen} per-token values"
                )
            flat.extend(value for value, trained in zip(values, sample.loss_mask, strict=True) if trained)
        return torch.tensor(flat, dtype=torch.float32, device=self.inputs_BT.device)


def num_targets(samples: Sequence[Sample]) -> int:
    """Loss positions of all samples together."""
    return sum(sum(sample.loss_mask) for sample in samples)


def split_microbatches(samples: Sequence[SampleT], max_tokens: int) -> list[list[SampleT]]:
    """Groups of at most `max_tokens` tokens, padding included; a longer sample stands alone.

    Sorted by length so that little is padded; samples without a loss position are left out, since they change nothing.
    """
    groups: list[list[SampleT]] = []
    for sample in sorted((s for s in samples if any(s.loss_mask)), key=lambda s: len(s.token_ids)):
        if groups and (len(groups[-1]) + 1) * len(sample.token_ids) <= max_tokens:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    return groups


def collate(samples: Sequence[Sample], device: torch.device) -> Microbatch:
    """The rectangle of `samples`.

    Raises:
        ValueError: a mask has another length than its tokens, or marks the first token, which nothing predicts.
    """
    width = max(_last_target(sample) for sample in samples)
    rows, positions, targets = [], [], []
    for row, sample in enumerate(samples):
        inputs = sample.token_ids[:width]
        rows.append(inputs + [0] * (width - len(inputs)))
        for index, trained in enumerate(sample.loss_mask):
            if trained:
                positions.append(row * width + index - 1)
                targets.append(sample.token_ids[index])
    return Microbatch(
        samples=samples,
        inputs_BT=torch.tensor(rows, device=device),
        positions_N=torch.tensor(positions, device=device),
        targets_N=torch.tensor(targets, device=device),
    )


def _last_target(sample: Sample) -> int:
    if len(sample.loss_mask) != len(sample.token_ids):
        raise ValueError(
            f"prompt {sample.prompt_id}: {len(sample.token_ids)} tokens but a loss mask of {len(sample.loss_mask)}"
        )
    if sample.loss_mask[0]:
        raise ValueError(f"prompt {sample.prompt_id}: the first token is marked as a target, but nothing predicts it")
    return len(sample.loss_mask) - 1 - sample.loss_mask[::-1].index(True)
