"""A student whose weights, gradients and optimiser state are spread over the ranks (FSDP2).

Each rank holds a slice of every parameter. A block's parameters are gathered when it runs and dropped after it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from stillhouse.training.loop.parallel.ranks import Ranks


def shard(step: nn.Module, blocks: Iterable[nn.Module], ranks: Ranks, dtype: torch.dtype) -> None:
    """Spreads the parameters of `step` over `ranks`, in place; does nothing for a process alone.

    Parameters come to the rank's device block by block: a module too large for it is to be on the CPU before. Those
    that are not of a floating type (weights frozen in 4 bits) stay whole in every rank. What holds parameters, such as
    an optimiser, is to be made afterwards.

    From then on every rank runs `step`, and nothing in it by itself, as often as the others do, and as often backward.
    Gradients are sums over the ranks, not means: a loss divided by the token count of the whole batch needs no other
    factor, whatever the number of ranks.

    Args:
        step: takes a microbatch to its loss. What it uses outside `blocks` (embedding, last norm, output layer) is
            gathered while it runs.
        blocks: its repeated layers.
        ranks: who trains together.
        dtype: type of computation. Slices, sums of gradients and what the optimiser sees keep the parameters' type.
    """
    if ranks.size == 1:
        return
    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    whole = {parameter for parameter in step.parameters() if not parameter.is_floating_point()}
    for parameter in whole:
        parameter.data = parameter.data.to(ranks.device)
    for module in (*blocks, step):
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy, ignored_params=whole)
        sharded.set_gradient_divide_factor(1.0)
        # Gloo knows no sum with a factor before it.
        sharded.set_force_sum_reduction_for_comms(True)
        # A rank whose tokens leave a parameter aside, an expert say, takes part in its sum nevertheless.
        sharded.set_reduce_scatter_unused_params(True, recurse=False)
    step.register_forward_hook(_forget_after_measuring)
    assert isinstance(step, FSDPModule)
    # Whichever module runs first is taken for the outermost one, also a block that is run to sample.
    step._get_fsdp_state()._lazy_init()


@contextmanager
def gathered(step: nn.Module) -> Iterator[None]:
    """Within the block every rank holds all weights, in the type of computation, and may run the model by itself.

    For sampling from a student that was sharded or was not. To enter is collective. The weights are there to be read.
    """
    if not isinstance(step, FSDPModule):
        yield
        return
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


def _forget_after_measuring(step: nn.Module, args: Any, output: Any) -> None:
    """Drops what was gathered for a pass that no backward pass follows, which would drop it.

    The next pass would otherwise see the weights that were measured, not those that have come in their place.
    """
    if not torch.is_grad_enabled():
        assert isinstance(step, FSDPModule)
        step.reset_iter_state()
