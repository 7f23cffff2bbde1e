"""A student whose weights, gradients and optimiser state are sharded over the ranks (FSDP2), and full tensors again.

Each rank holds a slice of every parameter. A block's parameters are gathered when it runs and dropped after it. What is
saved, such as a checkpoint, does not depend on the number of ranks.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from stillhouse.training.ranks import Ranks


def shard(step: nn.Module, blocks: Iterable[nn.Module], ranks: Ranks, dtype: torch.dtype) -> None:
    """Shard the parameters of `step` over `ranks`, in place; do nothing for a process alone.

    Parameters come to the rank's device block by block: a module too large for it has to be on the CPU before. What
    `step` uses outside `blocks` (embedding, last norm, output layer) is gathered while it runs. Parameters that are not
    floating-point (weights frozen in 4 bits) stay unsharded. Slices, sums of gradients and what the optimiser sees keep
    the parameters' type, whatever the `dtype` of computation. Make an optimiser afterwards.

    From then on every rank runs `step`, and no part of it alone, as often as the others do, and as often backward.
    Gradients are sums over the ranks, not means: a loss divided by the token count of the whole batch needs no other
    factor, whatever the number of ranks.
    """
    if ranks.size == 1:
        return
    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    unsharded = {parameter for parameter in step.parameters() if not parameter.is_floating_point()}
    for parameter in unsharded:
        parameter.data = parameter.data.to(ranks.device)
    for module in (*blocks, step):
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy, ignored_params=unsharded)
        sharded.set_gradient_divide_factor(1.0)
        # Gloo knows no sum with a factor before it.
        sharded.set_force_sum_reduction_for_comms(True)
        # A rank whose tokens leave a parameter unused, such as an expert, takes part in its sum nevertheless.
        sharded.set_reduce_scatter_unused_params(True, recurse=False)
    step.register_forward_hook(_reshard_without_backward)
    assert isinstance(step, FSDPModule)
    # FSDP takes whichever module runs first for the outermost one, also a block that is run to sample.
    step._get_fsdp_state()._lazy_init()


def shard_frozen(backbone: nn.Module, blocks: Iterable[nn.Module], ranks: Ranks) -> None:
    """Shard the blocks of a frozen model over `ranks`, in place; what else is in `backbone` comes to each device whole.

    From then on every rank runs `backbone` as often as the others do.
    """
    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    sharded: set[nn.Parameter] = set()
    for block in blocks:
        sharded.update(block.parameters())
        fully_shard(block, mesh=mesh)
    whole = set(backbone.parameters()) - sharded
    for parameter in whole:
        parameter.data = parameter.data.to(ranks.device)
    fully_shard(backbone, mesh=mesh, ignored_params=whole)


def is_sharded(step: nn.Module) -> bool:
    """Return whether `shard` sharded it."""
    return isinstance(step, FSDPModule)


@contextmanager
def gathered(step: nn.Module) -> Iterator[None]:
    """Let every rank hold all weights in the type of computation within the block, and run the model alone.

    For sampling from a student, sharded or not. Entering is collective. The weights are there to be read.
    """
    if not is_sharded(step):
        yield
        return
    assert isinstance(step, FSDPModule)
    modules = [module for module in step.modules() if isinstance(module, FSDPModule)]
    step.set_reshard_after_forward(False)
    for module in modules:
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(module is not step, recurse=False)
        step.reset_iter_state()


def _reshard_without_backward(step: nn.Module, args: Any, output: Any) -> None:
    """Drop the weights gathered for a forward pass without a backward pass, which would drop them.

    The next pass would otherwise see these weights even after they were updated.
    """
    if not torch.is_grad_enabled():
        assert isinstance(step, FSDPModule)
        step.reset_iter_state()


@torch.no_grad()
def full_tensors(value: Any, ranks: Ranks) -> Any:
    """Return nested dicts, lists and tuples with every tensor in them full, on the CPU and contiguous; collective.

    A tensor that is all that already is not copied: it changes when training goes on. Only the first rank gets the
    tensors, one after the other; the others get empty ones, so that no host holds the model once for each of its ranks.
    """
    match value:
        case DTensor():
            return full_tensors(value.full_tensor(), ranks)
        case Tensor():
            return value.detach().cpu().contiguous() if ranks.is_first else torch.empty(0)
        case dict():
            return {key: full_tensors(entry, ranks) for key, entry in value.items()}
        case list() | tuple():
            return type(value)(full_tensors(entry, ranks) for entry in value)
        case _:
            return value


@torch.no_grad()
def load_full_tensors(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy `values`, full and the same in every rank, into the `tensors` of these names; local."""
    for name, tensor in tensors.items():
        _local(tensor).copy_(_local(_sharded_like(values[name], tensor)))


def load_full_optimizer_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load a full state, the same in every rank, into `optimizer`; local.

    A tensor of the state is sharded as its parameter is, where it has the parameter's shape.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sharded = {
        number: {name: _sharded_like(value, parameters[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": sharded})


def _sharded_like(value: Any, tensor: Tensor) -> Any:
    if isinstance(tensor, DTensor) and isinstance(value, Tensor) and value.shape == tensor.shape:
        return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
    return value


def _local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor in this rank's memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
