"""Attention that keeps the segments of a packed row apart, and whether all of a model does.

Registered with transformers as `sdpa`, which it extends: without segments it is that attention, as sampling extends
it (`stillhouse.serving.attention`). Segments are an argument of the forward pass, which models pass on to every layer,
so that a layer recomputed by gradient checkpointing, in a thread of the backward pass, has them too.

Dimensions: T time, H heads, D width of a head.
"""

import logging
from collections.abc import Mapping, Sequence
from inspect import signature
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stillhouse.errors import TrainingError
from stillhouse.serving.attention import slot_attention
from stillhouse.training.model.backbone import backbone_of
from stillhouse.training.model.microbatches import Microbatch, Segments
from stillhouse.training.model.segment_products import MAX_FLOAT32_LENGTH, segment_products

logger = logging.getLogger(__name__)

_REFUSED: Final = ("softcap", "s_aux", "position_bias", "cache")
"""Arguments of layers that need more than a softmax over their own tokens."""
_MAX_VARLEN_WIDTH: Final = 256
"""Widest head of the flash kernels."""
# The kernels group query heads by themselves, forward and backward, wherever there are fewer heads of keys. torch 2.13
# merely checks the number of heads in Python, which this argument relaxes; torch 2.11 neither checks nor knows it.
_GROUPED_HEADS: Final[dict[str, Any]] = (
    {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
)
_PROBE_LENGTHS: Final = (7, 5)
_ROUNDING: Final = {True: 5e-2, False: 1e-3}
"""Share by which hidden states may differ in a row of another shape, in half precision and else."""


def segment_arguments(segments: Segments | None) -> dict[str, Any]:
    """Further arguments of the forward pass of a packed row; none without segments.

    The mask is a placeholder: given one of four dimensions, transformers does not build one of [T, T].
    """
    if segments is None:
        return {}
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=segments.starts.device)
    return {"segments": segments, "attention_mask": mask}


def backbone_outputs(backbone: Any, microbatch: Microbatch) -> Any:
    """Return what `backbone` makes of the tokens of a microbatch."""
    return backbone(
        input_ids=microbatch.inputs_BT,
        position_ids=microbatch.position_ids_BT,
        use_cache=False,
        **segment_arguments(microbatch.segments),
    )


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Segments | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention that transformers calls in each layer: `sdpa`, or causal attention within each segment.

    The query of a packed row is [1, H, T, D]; key and value have as many heads or a divisor of them. With segments the
    mask is a placeholder. `options` are further arguments of the layer, such as `scaling` and `sliding_window`.

    Returns:
        [1, T, H, D] and, as of `sdpa`, no weights.

    Raises:
        TrainingError: the layer needs something that attention by segments does not support.
    """
    if segments is None:
        return slot_attention(module, query, key, value, attention_mask, **options)
    refused = [name for name in _REFUSED if options.get(name) is not None]
    if attention_mask is not None and attention_mask.numel() > 1:
        refused.append("a mask of its own")
    # A compiled layer has been through the check of packing; configs cannot be traced.
    if not torch.compiler.is_compiling() and _window_in_mask(module, options):
        refused.append("a window in its mask alone")
    if refused:
        raise TrainingError(
            f"{type(module).__name__} asks for {', '.join(refused)}, which attention by segments does not have; "
            "its rows are to be padded"
        )
    if _flash_applies(query, value, options):
        return _flash(query, key, value, segments, options), None
    return _by_segment(module, query, key, value, segments, options), None


def _window_in_mask(module: nn.Module, options: Mapping[str, Any]) -> bool:
    """Whether the layer sees a window by its config and does not pass it on (PhiMoE; chunks of Llama 4)."""
    config = getattr(module, "config", None)
    if config is None or options.get("sliding_window") is not None:
        return False
    kinds, index = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    kind = kinds[index] if kinds and index is not None and index < len(kinds) else None
    if kind == "full_attention":
        return False
    return (
        getattr(config, "attention_chunk_size" if kind == "chunked_attention" else "sliding_window", None) is not None
    )


def _flash_applies(query: Tensor, value: Tensor, options: Mapping[str, Any]) -> bool:
    width = query.shape[-1]
    return (
        query.is_cuda
        and computed_type(query) in (torch.float16, torch.bfloat16)
        and width == value.shape[-1]
        and width <= _MAX_VARLEN_WIDTH
        and width % 8 == 0
        and not options.get("dropout")
        and _has_flash_kernels(query.device)
    )


# Evaluated while a block is compiled, not traced: torch 2.11 cannot trace the properties of a device.
@torch.compiler.assume_constant_result
def _has_flash_kernels(device: torch.device) -> bool:
    return torch.cuda.get_device_properties(device).major >= 8


def _flash(query: Tensor, key: Tensor, value: Tensor, segments: Segments, options: Mapping[str, Any]) -> Tensor:
    window = options.get("sliding_window")
    # Autocast does not cover the kernel.
    query, key, value = (x[0].transpose(0, 1).to(computed_type(x)) for x in (query, key, value))
    output = varlen_attn(
        *(query, key, value, segments.starts, segments.starts, segments.max_length, segments.max_length),
        scale=options.get("scaling"),
        # Tokens to the left of a token; transformers' window counts the token itself.
        window_size=(-1 if window is None else window - 1, 0),
        **_GROUPED_HEADS,
    )
    assert isinstance(output, Tensor)
    return output[None]


def _products_apply(query: Tensor, value: Tensor, segments: Segments, options: Mapping[str, Any]) -> bool:
    window = options.get("sliding_window")
    return (
        query.device.type == "cpu"
        and query.shape[-1] == value.shape[-1]
        and not options.get("dropout")
        and (window is None or segments.max_length <= window)
        and (computed_type(query).itemsize < 4 or segments.max_length <= MAX_FLOAT32_LENGTH)
    )


@torch.compiler.disable
def _by_segment(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, segments: Segments, options: Mapping[str, Any]
) -> Tensor:
    """Plain products where they apply, else one call of `sdpa` for each segment.

    On one CPU thread, forward and backward, such calls take 0.5 of the time of one call for a padded rectangle where 32
    segments have 100 to 500 tokens, 0.5 to 0.9 where 128 have 20 to 100, and 1.1 to 1.4 where all are equally long
    (hidden size 64 to 1024); one call with a block-diagonal mask takes 50 times as long. Never compiled, since each row
    has other lengths.
    """
    if _products_apply(query, value, segments, options):
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        query, key, value = (x[0].to(computed_type(x)) for x in (query, key, value))
        return segment_products(query, key, value, segments.lengths, scale)[None]
    window = options.get("sliding_window")
    queries, keys, values = (x.split(list(segments.lengths), dim=2) for x in (query, key, value))
    outputs = [
        sdpa_attention_forward(module, q, k, v, _window_mask(q, window), **options)[0]
        for q, k, v in zip(queries, keys, values, strict=True)
    ]
    return torch.cat(outputs, dim=1)


def _window_mask(query: Tensor, window: int | None) -> Tensor | None:
    """True where a token sees another: the `window` tokens up to itself; None where that is every earlier one."""
    length = query.shape[2]
    if window is None or length <= window:
        return None
    return torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(1 - window)


def computed_type(x: Tensor) -> torch.dtype:
    """The type in which a matrix product with `x` is computed here."""
    device_type = x.device.type
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else x.dtype


AttentionInterface.register("sdpa", segment_attention)


def packs_exactly(causal_lm: PreTrainedModel) -> bool:
    """Whether hidden states of samples in one row are those of the samples alone; a warning gives the reason if not.

    Recurrent layers, convolutions over time, and attention that is not transformers' `sdpa` mix the segments of a row.
    Two short segments are tried. The model is in eval mode, on one device; call it in the precision of the training.
    """
    reason = _mixing_reason(causal_lm)
    if reason is not None:
        logger.warning("%s cannot be packed, so its rows are padded: %s", type(causal_lm).__name__, reason)
    return reason is None


def _mixing_reason(causal_lm: PreTrainedModel) -> str | None:
    implementation = causal_lm.config.get_text_config()._attn_implementation
    if implementation != "sdpa":
        return f"its attention is {implementation!r}; segments are known to 'sdpa'"
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
    """Hidden states of the samples in one row, and the embedded tokens that they depend on."""
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
