import re
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DogeConfig,
    Gemma2Config,
    Lfm2Config,
    MambaConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    RecurrentGemmaConfig,
    StableLmConfig,
)

from stillhouse.attention import use_attention
from stillhouse.training.model.packing import packs_exactly

PACKED_SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "pad_token_id": 0}
PACKED_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


def model_of(config_class: type, **settings: Any) -> Any:
    torch.manual_seed(0)
    return use_attention(AutoModelForCausalLM.from_config(config_class(**PACKED_SIZES, **settings))).eval()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == packs_exactly.__module__]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize(
    ("config_class", "settings"),
    [
        (Qwen3Config, {"head_dim": 8}),
        (Qwen3MoeConfig, {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}),
    ],
)
def test_models_that_keep_segments_apart_pack(
    config_class: type, settings: dict[str, Any], precision: str, caplog: pytest.LogCaptureFixture
):
    model = model_of(config_class, **PACKED_HEADS, **settings)
    if precision == "bfloat16":
        model = model.to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext():
        assert packs_exactly(model)
    assert not warnings(caplog)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("config_class", "settings", "reason"),
    [
        (MambaConfig, {}, "its attention is 'eager'"),
        # transformers 5.23 runs it by 'eager' attention, 5.17 by 'sdpa' with an argument.
        (Gemma2Config, {**PACKED_HEADS, "head_dim": 8}, "its attention is 'eager'|Gemma2Attention asks for softcap"),
        (RecurrentGemmaConfig, PACKED_HEADS, "hidden states of a packed row differ"),
        (Lfm2Config, {**PACKED_HEADS, "layer_types": ["conv", "full_attention"]}, "depend on the sample before it"),
        (StableLmConfig, PACKED_HEADS, "hidden states of a packed row differ"),
        (DogeConfig, {**PACKED_HEADS, "head_dim": 8}, "its attention depends on masks"),
    ],
    ids=["recurrent", "softcap", "recurrent and attention", "convolution", "arguments kept back", "own mask"],
)
def test_models_that_would_mix_segments_are_padded_with_a_reason(
    config_class: type, settings: dict[str, Any], reason: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
):
    assert not packs_exactly(model_of(config_class, **settings).to(dtype))
    (warning,) = warnings(caplog)
    assert "cannot be packed, so its rows are padded" in warning
    assert re.search(reason, warning)
