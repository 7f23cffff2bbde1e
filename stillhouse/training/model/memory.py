"""Estimates the device memory that training takes beyond the weights, and so whether it needs checkpointing.

On a CPU it is 0.96 to 1.08 of the peak without checkpointing and 0.86 to 1.17 with it, with 16 experts 1.06 to 1.25
(packed rows of 2,048 and 4,096 tokens, all weights and adapters, hidden size 256 and 384).
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Final

import psutil
import torch
from torch import Tensor

from stillhouse.config import TrainerConfig
from stillhouse.training.head.fused import chunk_tokens
from stillhouse.training.head.softmax import block_elements
from stillhouse.training.model.blocks import decoder_blocks
from stillhouse.training.model.student import Student
from stillhouse.training.ranks import Ranks

logger = logging.getLogger(__name__)

_USABLE: Final = 0.9
"""Share of the free memory to plan with: allocators lose some between their blocks."""
_PROBE_TOKENS: Final = (64, 128)
_COMPILED_SHARE: Final = 0.7
"""Of the activations counted in eager mode: in bfloat16 with flash attention 0.60 for all weights of Qwen3-0.6B and
1.7B, 0.69 for an adapter over Qwen3-8B."""
_COMPARISON_COPIES: Final = 2
"""float32 copies of a chunk's logits that compiled comparisons of student and teacher make at most."""
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on the device at the peak of a step, beyond the weights."""

    state: int
    """Gradients, the optimiser's state, and the running mean of the weights if one is kept."""
    kept: int
    """Activations kept for the backward pass."""
    passing: int
    """Temporary memory: the larger of what the output layer and what a block's backward pass needs."""

    @property
    def total(self) -> int:
        return self.state + self.kept + self.passing

    def __str__(self) -> str:
        parts = (part / _GIB for part in (self.total, self.state, self.kept, self.passing))
        return "{:.2f} GiB beyond the weights (state {:.2f}, kept {:.2f}, passing {:.2f})".format(*parts)


def wants_checkpointing(
    student: Student,
    config: TrainerConfig,
    num_tokens: int,
    ranks: Ranks,
    *,
    compares: bool = False,
    compiled: bool = False,
) -> bool:
    """Return whether gradient checkpointing is to be used; collective: if one rank needs it, all use it.

    `auto` does where the estimate without it is above nine tenths of the free memory. Call it after the weights were
    loaded, before optimiser and running mean are made and weights are sharded. `num_tokens` are those of the largest
    microbatch, padding included; `compares` says whether the output layer compares the student with a teacher.
    """
    if config.gradient_checkpointing != "auto":
        return config.gradient_checkpointing == "on"
    estimate = partial(
        estimate_memory, student, config, num_tokens, num_ranks=ranks.size, compares=compares, compiled=compiled
    )
    plain, checkpointed = estimate(checkpointed=False), estimate(checkpointed=True)
    free = free_memory(ranks.device)
    if student.device != ranks.device:
        # Sharded weights move to their devices only afterwards.
        free -= sum(p.nbytes for p in student.model.parameters()) // ranks.size
    _, maxima = ranks.sum_and_max({}, {"is needed": float(plain.total > _USABLE * free)})
    is_needed = bool(maxima["is needed"])
    logger.info(
        "gradient checkpointing %s: %s; with it %s; %.2f GiB are free",
        *("on" if is_needed else "off", plain, checkpointed, free / _GIB),
    )
    if is_needed and checkpointed.total > _USABLE * free:
        logger.warning(
            "training may run out of memory even with gradient checkpointing; lower microbatch_tokens, or train an "
            "adapter"
        )
    return is_needed


def free_memory(device: torch.device) -> int:
    """Return the bytes that tensors on `device` can still take."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    return psutil.virtual_memory().available


def estimate_memory(
    student: Student,
    config: TrainerConfig,
    num_tokens: int,
    *,
    checkpointed: bool,
    num_ranks: int = 1,
    compares: bool = False,
    compiled: bool = False,
) -> MemoryEstimate:
    """Return the estimate for microbatches of `num_tokens`, all of them targets, on one of `num_ranks`.

    What a forward pass keeps is not derived from the model's config but counted, on rows of 64 and 128 tokens: it is
    proportional to the number of tokens, beside a part that is not (weights cast to the type of computation).
    """
    fixed, per_token = _kept_by_forward(student)
    if compiled:
        per_token *= _COMPILED_SHARE
    num_blocks = len(decoder_blocks(student.causal_lm))
    summed = _summed_bytes(student)
    block = (per_token * num_tokens + summed) / num_blocks
    if checkpointed:
        fixed -= summed
        embedding = student.causal_lm.get_input_embeddings().weight
        itemsize = max(student.dtype.itemsize, embedding.dtype.itemsize)
        kept = num_blocks * embedding.shape[1] * itemsize * num_tokens
    else:
        kept = per_token * num_tokens
    return MemoryEstimate(
        state=_state_bytes(student, config) // num_ranks,
        kept=int(max(0.0, fixed) + kept),
        # Gradients of a block are about as large as what it keeps, which checkpointing makes anew beside them.
        passing=int(max(_head_bytes(student, num_tokens, compares, compiled), block * (2 if checkpointed else 1))),
    )


def _state_bytes(student: Student, config: TrainerConfig) -> int:
    tables = {id(student.head.weight), id(student.causal_lm.get_input_embeddings().weight)}
    total = 0
    for _, p in student.trained_parameters():
        is_table = id(p) in tables
        match config.optimizer:
            case "adamw":
                moments = 8
            case "adamw_8bit":
                moments = 8 if is_table else 2
            case "muon":
                moments = 4 if p.ndim == 2 and not is_table else 8
        average = 0 if config.ema_decay is None else p.element_size()
        total += p.numel() * (p.element_size() + moments + average)
    return total


def _summed_bytes(student: Student) -> int:
    """Return the bytes of fused experts with their adapters added, which a pass makes and keeps like activations."""
    if student.model is student.causal_lm:
        return 0
    from peft.tuners.lora.layer import ParamWrapper

    return sum(module.get_param().nbytes for module in student.model.modules() if isinstance(module, ParamWrapper))


def _head_bytes(student: Student, num_tokens: int, compares: bool, compiled: bool) -> int:
    """Return the bytes of a chunk's logits, a block's float32 copies, and gradients of hidden states and weight.

    A comparison has the teacher's logits of the chunk beside them, its hidden states, its weight in the type of the
    products, and of a block up to eight float32 copies, or some of the whole chunk where it is compiled. Capped logits
    have a float32 buffer of their own.
    """
    weight = student.head.weight
    itemsize = student.dtype.itemsize
    logits = weight.shape[0] * chunk_tokens(num_tokens, weight.shape[0], weight.device.type)
    # Processors without half-precision products make float32 ones first.
    rounded = 4 if weight.device.type == "cpu" and itemsize < 4 else 0
    if compiled:
        copies = _COMPARISON_COPIES * compares * 4 * logits
    else:
        copies = (3 + 8 * compares) * 4 * min(logits, block_elements(weight.device))
    hidden = num_tokens * weight.shape[1] * (itemsize + 4 + itemsize * compares)
    trained = weight.numel() * 4 if weight.requires_grad else 0
    cast = weight.numel() * itemsize if weight.dtype.itemsize != itemsize else 0
    copies += 0 if student.step.scaling.cap is None else 4 * logits
    return (logits * (itemsize + rounded) + cast) * (1 + compares) + copies + hidden + trained


def _kept_by_forward(student: Student) -> tuple[float, float]:
    """Return the bytes that a forward pass keeps for the backward pass: a fixed part, and bytes per token."""
    was_training = student.model.training
    student.model.train()
    with torch.random.fork_rng([student.device] if student.device.type == "cuda" else []):
        few, many = (_kept_of_row(student, num_tokens) for num_tokens in _PROBE_TOKENS)
    student.model.train(was_training)
    per_token = (many - few) / (_PROBE_TOKENS[1] - _PROBE_TOKENS[0])
    return max(0.0, few - per_token * _PROBE_TOKENS[0]), per_token


def _kept_of_row(student: Student, num_tokens: int) -> int:
    weights = {p.untyped_storage().data_ptr() for p in student.model.parameters()}
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs_BT = torch.arange(num_tokens, device=student.device)[None] % student.head.weight.shape[0]
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor), student.precision():
        # Held, so that none of it is freed and its memory reused while it is counted.
        hidden_BTH = student.step.backbone(input_ids=inputs_BT, use_cache=False).last_hidden_state
    del hidden_BTH
    return sum(kept.values())
