import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, FalconConfig, Gemma3Config, PreTrainedConfig, Qwen3Config

from stillhouse.attention import ATTENTION, use_attention

TEXT = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50,
    "head_dim": 8, "num_key_value_heads": 1, "pad_token_id": 0,
}  # fmt: skip
VISION = {"image_size": 28, "patch_size": 14, "num_hidden_layers": 1}


def test_no_import_changes_what_transformers_or_torch_compute_for_others() -> None:
    program = """
import json, torch, torch._dynamo
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

def settings():
    state = {name: id(of[name]) for of in (functions, masks) for name in of if name != "stillhouse"}
    matmul = torch.backends.mkldnn.matmul.fp32_precision
    return state, torch._dynamo.config.get_hash(), matmul, torch.are_deterministic_algorithms_enabled()

before = settings()
import stillhouse.serving.generator, stillhouse.training.__main__, stillhouse.training.launch.process
import stillhouse.training.model.load, stillhouse.training.run_job
assert settings() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "config",
    [Qwen3Config(**TEXT), Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4)],
    ids=["text", "images and text"],
)
def test_a_saved_model_loads_where_the_attention_is_not_known(config: PreTrainedConfig, tmp_path: Path) -> None:
    model = use_attention(AutoModelForCausalLM.from_config(config))
    assert model.config.get_text_config()._attn_implementation == ATTENTION
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert f'"{ATTENTION}"' not in json.dumps(saved)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.get_text_config()._attn_implementation == "sdpa"


def test_a_family_that_calls_sdpa_itself_stays_as_it_is() -> None:
    config = FalconConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = use_attention(AutoModelForCausalLM.from_config(config))
    assert model.config._attn_implementation == "sdpa"
    assert model(input_ids=torch.tensor([[1, 2]])).logits.shape == (1, 2, 50)
