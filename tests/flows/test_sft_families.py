"""SFT of small models of several families by the console script, with and without an adapter."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stillhouse.chat.tokenizer import load_tokenizer

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 128}
_DENSE = {**_SIZES, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "mamba2": {**_SIZES, "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8},
    "gemma4_text": {
        **_DENSE, "head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 640, "layer_types": ["sliding_attention", "full_attention"],
    },
    "llama": _DENSE,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "qwen3_moe": {**_DENSE, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "falcon_h1": {**_DENSE, "mamba_d_ssm": 32, "mamba_expand": 1, "mamba_d_head": 8, "mamba_n_heads": 4},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_fine_tuned_from_a_file_of_rows(
    family: str, parameters: str, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    tokenizer = load_tokenizer("embedded:student")
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=640, **FAMILIES[family])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    row = {"messages": [{"role": "user", "content": "Say 7."}, {"role": "assistant", "content": "7"}]}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 8)
    settings = {
        "student": {"model": "base", "parameters": parameters, "dtype": "float32", "lora_rank": 2, "max_length": 64},
        "sft": {"sources": [{"path": "rows.jsonl"}], "dataset_weight": 0.0, "batch_size": 4, "num_epochs": 1},
        "evaluation": {"enabled": False},
        "tracking": {"enabled": False},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    done = cli("sft", "config.yaml", cwd=tmp_path, timeout_s=600)
    assert done.returncode == 0, done.stderr
    assert "2 steps" in done.stdout
