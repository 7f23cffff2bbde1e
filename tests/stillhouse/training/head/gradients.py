"""Losses are held against others together with their gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor


def assert_close(seen: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-10)


def assert_same(seen: Tensor, expected: Tensor, trained: Sequence[Tensor]) -> None:
    """Compare losses and their gradients."""
    assert_close(seen, expected)
    for one, other in zip(*(torch.autograd.grad(value, trained) for value in (seen, expected)), strict=True):
        assert_close(one, other)
