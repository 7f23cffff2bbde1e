"""Whole tensors of what is spread over the ranks, and back: what leaves the ranks knows nothing of their number."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from stillhouse.training.loop.parallel.ranks import Ranks


@torch.no_grad()
def whole(value: Any, ranks: Ranks) -> Any:
    """`value` with every tensor in it whole, on the CPU and contiguous; collective.

    What is that already is no copy: it changes when training goes on.

    Args:
        value: a tensor, a value without tensors, or dicts, lists and tuples of such: weights by name, or the state of
            an optimiser.
        ranks: who trains together. Only the first of them gets the tensors, one after the other; the others get empty
            ones, so that no host holds a model once for each of its ranks.
    """
    match value:
        case DTensor():
            return whole(value.full_tensor(), ranks)
        case Tensor():
            return value.detach().cpu().contiguous() if ranks.is_first else torch.empty(0)
        case dict():
            return {key: whole(entry, ranks) for key, entry in value.items()}
        case list() | tuple():
            return type(value)(whole(entry, ranks) for entry in value)
        case _:
            return value


@torch.no_grad()
def load_whole(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Puts `values`, which are whole and the same in every rank, in the place of the `tensors` of these names; local.

    Raises:
        KeyError: a tensor's name has no value.
    """
    for name, tensor in tensors.items():
        _own(tensor).copy_(_own(_spread_like(values[name], tensor)))


def load_whole_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """`optimizer.load_state_dict` of a whole state, which is the same in every rank; local.

    A tensor of the state is spread as its parameter is, where it has the parameter's shape.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_parameter = {
        number: {name: _spread_like(value, parameters[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": of_parameter})


def _spread_like(value: Any, tensor: Tensor) -> Any:
    """This rank's slice of `value` as `tensor` is sliced; the value itself where there is nothing to slice."""
    if isinstance(tensor, DTensor) and isinstance(value, Tensor) and value.shape == tensor.shape:
        return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
    return value


def _own(tensor: Tensor) -> Tensor:
    """What of a tensor is in this rank's memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
