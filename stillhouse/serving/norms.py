"""RMS normalisation in one kernel instead of eight.

transformers writes it out in elementary operations. In a recorded decode pass of a small model, where each kernel takes
a few microseconds whatever it computes, these are half of all kernels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

_TOLERANCE: Final = 1e-5


class FusedNorms:
    """The normalisations of a model that `torch.nn.functional.rms_norm` computes too.

    They are known by their results on random numbers, since families of models call and vary them differently.

    Args:
        model: Frozen, or used without gradients while they are fused.
        device_type: Where they are worth it; those of weights elsewhere are left alone.
    """

    def __init__(self, model: nn.Module, device_type: str = "cuda") -> None:
        self._fused = [(module, _fused(module)) for module in model.modules() if _is_rms_norm(module, device_type)]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Has the model compute them by one kernel each inside the block."""
        try:
            for module, forward in self._fused:
                module.forward = forward  # type: ignore[method-assign]
            yield
        finally:
            for module, _ in self._fused:
                vars(module).pop("forward", None)


def _epsilon(module: nn.Module) -> float | None:
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return epsilon if isinstance(epsilon, float) else None


def _fused(module: nn.Module) -> Callable[[Tensor], Tensor]:
    epsilon = _epsilon(module)

    def forward(states: Tensor) -> Tensor:
        weight = module.weight
        assert isinstance(weight, Tensor)
        # PyTorch has a kernel for states and weights of one type only.
        dtype = torch.promote_types(states.dtype, weight.dtype)
        return rms_norm(states.to(dtype), weight.shape, weight.to(dtype), epsilon)

    return forward


@torch.no_grad()
def _is_rms_norm(module: nn.Module, device_type: str) -> bool:
    weight = vars(module).get("_parameters", {}).get("weight")
    if (
        "RMSNorm" not in type(module).__name__
        or "forward" in vars(module)
        or weight is None
        or weight.ndim != 1
        or weight.device.type != device_type
        or _epsilon(module) is None
        or len(module._parameters) > 1
    ):
        return False
    generator = torch.Generator(weight.device).manual_seed(0)
    states = torch.randn(4, len(weight), generator=generator, device=weight.device)
    seen, expected = _fused(module)(states), module(states)
    return seen.shape == expected.shape and bool((seen - expected).abs().max() <= _TOLERANCE * expected.abs().max())
