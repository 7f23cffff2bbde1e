"""Compiles the repeated layers of a model, or recomputes their activations (gradient checkpointing), block by block."""

import logging
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from stillhouse.config import TrainerConfig
from stillhouse.errors import ConfigError
from stillhouse.training.model.student import Student

logger = logging.getLogger(__name__)

MIN_COMPILED_STEPS: Final = 200
"""Steps from which `auto` compiles: compilation takes a minute or two, which shorter trainings do not regain."""
_RECOMPILE_LIMIT: Final = 32
"""A block may be compiled again for rows of another range of lengths; at torch's limit of 8 it would run uncompiled."""


def decoder_blocks(causal_lm: PreTrainedModel) -> list[nn.Module]:
    """Return the repeated layers of the model in order: the outermost modules that transformers can checkpoint."""
    blocks: list[nn.Module] = []
    inside: set[int] = set()
    for module in causal_lm.modules():
        if isinstance(module, GradientCheckpointingLayer) and id(module) not in inside:
            blocks.append(module)
            inside.update(map(id, module.modules()))
    if not blocks:
        raise ConfigError(
            f"student model: {type(causal_lm).__name__} has no layers that can be compiled, checkpointed or sharded one"
            " by one; set gradient_checkpointing and compile to `off` and train in one process"
        )
    return blocks


def prepare_blocks(causal_lm: PreTrainedModel, *, compiled: bool, checkpointed: bool) -> None:
    """Change the forward pass of the blocks where gradients are taken; validation and sampling stay uncompiled.

    Checkpointing (arXiv 1604.06174, torch's form that is not reentrant) computes the same bits and needs no input
    with a gradient, which a block over frozen embeddings does not have; dropout is drawn alike both times. A compiled
    block, for rows of any length, gives other roundings, which may also depend on the first row it saw: on a CPU a
    resumed training is then the uninterrupted one to rounding only.

    Call it once, before weights are sharded: hooks of the blocks then run outside of what is compiled and recomputed.
    """
    if not (compiled or checkpointed):
        return
    for block in decoder_blocks(causal_lm):
        block.forward = _training_forward(block, compiled=compiled, checkpointed=checkpointed)


def compile_frozen_blocks(causal_lm: PreTrainedModel) -> None:
    """Compile the blocks of a frozen model for packed rows of any length, in place."""
    for block in decoder_blocks(causal_lm):
        block.forward = _compiled(block.forward, suppress_errors=True)


def _compiled(forward: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """Compile a forward pass for rows of any length.

    Settings of the compiler are a thread's own (pytorch#186537), and checkpointing runs it in the backward pass's too.
    """
    compiled: Callable[..., Any] = torch._dynamo.config.patch(recompile_limit=_RECOMPILE_LIMIT, **settings)(
        torch.compile(forward, dynamic=True)
    )
    return compiled


def compiler_settings(*, suppress_errors: bool) -> Any:
    """Return the settings of torch's compiler for a block of code: of this thread, and for no longer.

    With `suppress_errors`, what the compiler cannot compile runs uncompiled, with a warning.
    """
    return torch._dynamo.config.patch(recompile_limit=_RECOMPILE_LIMIT, suppress_errors=suppress_errors)


def wants_compile(student: Student, config: TrainerConfig, num_steps: int, device: torch.device) -> bool:
    """Return whether blocks and loss of a student, which will train on `device`, are compiled.

    `auto` leaves out adapters that compile in pieces.

    Raises:
        ConfigError: as `pays_to_compile`.
    """
    settings = None if student.model is student.causal_lm else student.model.peft_config["default"]
    if config.compile == "auto" and settings is not None and settings.target_parameters:
        return False
    return pays_to_compile(config, num_steps, device)


def pays_to_compile(config: TrainerConfig, num_steps: int, device: torch.device) -> bool:
    """Return whether a training of `num_steps` steps compiles what runs on `device`.

    `auto` does on CUDA from 200 steps on, where the machine has a compiler that works.

    Raises:
        ConfigError: `on`, where the compiler that torch needs is missing.
    """
    if config.compile == "on" and (missing := missing_compiler(device)) is not None:
        raise ConfigError(f"compile = 'on' needs {missing}. Install it, or set compile to `off`")
    if config.compile != "auto":
        return config.compile == "on"
    return device.type == "cuda" and num_steps >= MIN_COMPILED_STEPS and can_compile(device)


def _training_forward(block: nn.Module, *, compiled: bool, checkpointed: bool) -> Callable[..., Any]:
    plain = block.forward
    trained = _compiled(plain) if compiled else plain
    if checkpointed:
        # Outside of what is compiled: the other way round, blocks with attention by segments are not compiled.
        trained = partial(checkpoint, trained, use_reentrant=False)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        if compiled and isinstance(args[0], Tensor) and not args[0].requires_grad:
            # The first block over frozen embeddings would otherwise be compiled separately.
            args = (args[0].detach().requires_grad_(), *args[1:])
        return trained(*args, **kwargs)

    return forward


def missing_compiler(device: torch.device) -> str | None:
    """Return what `torch.compile` needs for `device` and this machine lacks; None where nothing is missing."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "the package triton"
    variable, names = ("CC", ("gcc", "clang")) if device.type == "cuda" else ("CXX", ("g++", "clang++"))
    if any(shutil.which(name) for name in (os.environ.get(variable, names[0]), *names)):
        return None
    return f"a compiler for the host's processor ({' or '.join(names)}, or the variable {variable})"


@cache
def can_compile(device: torch.device) -> bool:
    """Return whether a function of one operation compiles and runs on `device`; warn with the reason if not.

    An installed compiler may still fail, most often because the header files of Python are missing.
    """
    missing = missing_compiler(device)
    if missing is None:
        try:
            torch.compile(lambda x: x.sin() + 1.0)(torch.zeros(32, device=device))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever compilers and drivers raise
            missing = f"a compiler that works ({type(error).__name__}: {str(error).strip().splitlines()[0]})"
    if missing is not None:
        logger.warning("training is not compiled, which makes it slower: torch.compile needs %s", missing)
    return missing is None
