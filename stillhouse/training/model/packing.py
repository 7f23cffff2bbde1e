"""Forward passes of microbatches, and whether a model keeps the segments of a packed row apart."""

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stillhouse.attention import ATTENTION
from stillhouse.attention.segments import Segments, computed_type, segment_arguments
from stillhouse.errors import TrainingError
from stillhouse.training.model.microbatches import Microbatch

logger = logging.getLogger(__name__)

_PROBE_LENGTHS: Final = (7, 5)
_ROUNDING: Final = {True: 5e-2, False: 1e-3}
"""Share by which hidden states may differ in a row of another shape, in half precision and else."""


def backbone_of(causal_lm: PreTrainedModel) -> Any:
    """Return the module whose `last_hidden_state` the output layer is applied to.

    Raises:
        TrainingError: the family has none that takes tokens alone.
    """
    backbone = causal_lm.base_model
    if backbone is causal_lm:
        # Text models taken out of one for images go by its prefix (Llama 4, Mllama).
        backbone = causal_lm.get_submodule("model")
    try:
        backbone.get_input_embeddings()
    except NotImplementedError:
        raise TrainingError(
            f"{type(causal_lm).__name__}: it is the decoder of a model with an encoder, which cannot be trained here; "
            "take a decoder-only model"
        ) from None
    return backbone


def states_before_targets(backbone: Any, microbatch: Microbatch) -> Tensor:
    """Return the last hidden states [N, H] at the positions that predict a target, in the order of the targets."""
    hidden_BTH = backbone(
        input_ids=microbatch.inputs_BT,
        position_ids=microbatch.position_ids_BT,
        use_cache=False,
        **segment_arguments(microbatch.segments),
    ).last_hidden_state
    states_NH: Tensor = hidden_BTH.flatten(0, 1).index_select(0, microbatch.target_places_N)
    return states_NH


def packs_exactly(causal_lm: PreTrainedModel) -> bool:
    """Return whether samples in one row have the hidden states that they have alone; warn with the reason if not.

    Recurrent layers, convolutions over time, and attention other than `stillhouse.attention` mix the segments of a row.
    Two short segments are tried. The model is in eval mode, on one device; call it in the precision of the training.
    """
    reason = _mixing_reason(causal_lm)
    if reason is not None:
        logger.warning("%s cannot be packed, so its rows are padded: %s", type(causal_lm).__name__, reason)
    return reason is None


def _mixing_reason(causal_lm: PreTrainedModel) -> str | None:
    implementation = causal_lm.config.get_text_config()._attn_implementation
    if implementation != ATTENTION:
        return f"its attention is {implementation!r}; segments are known to {ATTENTION!r}"
    # Models that support flash attention, which takes no mask, pass all it needs (a window) as arguments.
    if not causal_lm._supports_flash_attn:
        return "its attention depends on masks"
    num_ids = causal_lm.get_input_embeddings().num_embeddings
    ids = torch.arange(sum(_PROBE_LENGTHS), device=causal_lm.device).mul(37).add(11).remainder(num_ids)
    samples = ids.split(_PROBE_LENGTHS)
    with torch.no_grad():
        alone = torch.cat([_hidden_states(causal_lm, sample[None]) for sample in samples], dim=1)
    try:
        packed, embedded = _packed_row(causal_lm, samples)
    except (TrainingError, TypeError, ValueError, RuntimeError) as error:
        # Layers that accept neither segments nor a mask of four dimensions raise whatever their code runs into.
        return str(error)
    difference = ((packed - alone).float().norm() / alone.float().norm()).item()
    if not difference <= _ROUNDING[computed_type(alone).itemsize < 4]:
        return f"hidden states of a packed row differ by {difference:.2g} from those of its samples"
    # Unequal weights: a plain sum over normalised states may have no gradient.
    weights = torch.linspace(-1, 1, alone[:, _PROBE_LENGTHS[0] :].numel(), device=alone.device)
    with torch.enable_grad():
        second = packed[:, _PROBE_LENGTHS[0] :].float().flatten() @ weights
    (gradient,) = torch.autograd.grad(second, embedded)
    if gradient[:, : _PROBE_LENGTHS[0]].any():
        return "hidden states of a sample depend on the sample before it"
    return None


def _packed_row(causal_lm: PreTrainedModel, samples: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the hidden states of the samples in one row, and the embedded tokens that they depend on."""
    lengths = tuple(len(ids) for ids in samples)
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=causal_lm.device)
    embedded: list[Tensor] = []

    def keep(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    with torch.enable_grad(), causal_lm.get_input_embeddings().register_forward_hook(keep):
        hidden = _hidden_states(
            causal_lm,
            torch.cat(list(samples))[None],
            position_ids=torch.cat([torch.arange(length, device=starts.device) for length in lengths])[None],
            **segment_arguments(Segments(starts, lengths, max(lengths))),
        )
    return hidden, embedded[0]


def _hidden_states(causal_lm: PreTrainedModel, input_ids: Tensor, **arguments: Any) -> Tensor:
    return backbone_of(causal_lm)(input_ids=input_ids, use_cache=False, **arguments).last_hidden_state
