from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
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

from stillhouse.attention import use_attention
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.passes import slot_masks
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
    name: str, assert_forced: Callable[..., None]
) -> None:
    torch.manual_seed(0)
    model = use_attention(MODELS[name]()).eval()
    prompts = [[3, 4, 5], list(range(1, 22)), [9] * 11]
    generations = Generator(model, max_batch=2).run([GenerationRequest(prompt, 12) for prompt in prompts])
    assert_forced(model, prompts, generations)
    scores = score_tokens(model, [[*p, *g.completion_ids] for p, g in zip(prompts, generations, strict=True)])
    for prompt, generation, score in zip(prompts, generations, scores, strict=True):
        assert score[len(prompt) :] == pytest.approx(generation.logprobs, abs=1e-4)


def test_a_model_with_recurrent_layers_is_refused_by_name() -> None:
    config = Qwen3NextConfig(num_hidden_layers=4)
    config._attn_implementation = "sdpa"
    with pytest.raises(ValueError, match="linear_attention"):
        slot_masks(config, torch.zeros(1, 1, dtype=torch.long), 1)


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        is_view = any(argument.alias_info is not None for argument in function._schema.arguments)
        if isinstance(result, torch.Tensor) and not is_view:
            self.size = max(self.size, result.numel())
        return result


def test_a_step_copies_no_keys() -> None:
    torch.manual_seed(0)
    shape = {**SHAPE, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    model = use_attention(LlamaForCausalLM(LlamaConfig(**shape))).eval()
    generator = Generator(model, max_batch=4)
    for i in range(4):
        generator.submit(GenerationRequest([3 + i] * (300 + i), 50, seed=i))
    for _ in range(3):
        generator.step()
    with LargestTensor() as largest:
        generator.step()
    keys = 4 * 2 * 300 * 8
    assert largest.size < keys, "a tensor as large as a layer's keys is made at every step"
