"""Activations in the memory of the host between the forward and the backward pass."""

from typing import Final

import torch
from torch import Tensor, nn

_MIN_BYTES: Final = 1 << 20
"""Smaller tensors stay: their copies would cost more than their memory is worth."""


def activation_offload(min_bytes: int = _MIN_BYTES) -> torch.autograd.graph.saved_tensors_hooks:
    """Within the block, what a forward pass keeps for its backward pass is copied to the host and back when it is used.

    The bits stay the same. Unlike torch's `save_on_cpu` it leaves weights, and weights cast by autocast, where they
    are; a backward pass needs all of them, and copies would take longer than those of the activations. With gradient
    checkpointing, what is copied are the inputs of blocks. On a CPU it only costs time.

    Args:
        min_bytes: size from which a tensor is copied.
    """

    def keep(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        if tensor.nbytes < min_bytes or _is_weight(tensor):
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, pin_memory=tensor.is_cuda)
        return tensor.device, host.copy_(tensor, non_blocking=tensor.is_cuda)

    def fetch(kept: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        device, host = kept
        return host.to(device, non_blocking=device.type == "cuda")

    return torch.autograd.graph.saved_tensors_hooks(keep, fetch)


def _is_weight(tensor: Tensor) -> bool:
    """Whether it is a parameter, a view of one, or one of the two cast to another type."""
    whole = tensor if tensor._base is None else tensor._base
    if isinstance(whole, nn.Parameter):
        return True
    cast = whole.grad_fn
    return cast is not None and cast.name() == "ToCopyBackward0" and hasattr(cast.next_functions[0][0], "variable")
