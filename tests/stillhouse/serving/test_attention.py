from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
)

from stillhouse.serving.attention import slot_masks
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.score import score_tokens

SHAPE: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "mistral, sliding window 5": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=5)),
    "gemma3, full and sliding layers": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SHAPE, sliding_window=5, layer_types=["sliding_attention", "full_attention"])
    ),
    "qwen3, eager attention": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, attn_implementation="eager")),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_kind_of_attention_samples_and_scores_as_one_forward_pass_does(
    name: str, teacher_forced: Callable[..., list[float]]
) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    prompts = [[3, 4, 5], list(range(1, 22)), [9] * 11]
    generations = Generator(model, max_batch=2).run([GenerationRequest(prompt, 12) for prompt in prompts])
    scores = score_tokens(model, [[*p, *g.completion_ids] for p, g in zip(prompts, generations, strict=True)])
    for prompt, generation, score in zip(prompts, generations, scores, strict=True):
        expected = teacher_forced(model, prompt, generation.completion_ids)
        assert generation.logprobs == pytest.approx(expected, abs=1e-4)
        assert score[len(prompt) :] == pytest.approx(expected, abs=1e-4)


def test_a_model_with_recurrent_layers_is_refused_by_name() -> None:
    config = Qwen3NextConfig(num_hidden_layers=4)
    config._attn_implementation = "sdpa"
    with pytest.raises(ValueError, match=r"qwen3_next.*linear_attention"):
        slot_masks(config, torch.zeros(1, 1, dtype=torch.long), 1)
