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
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stillhouse.serving.attention import (
    TOLERANCE,
    Kernel,
    PackedLayout,
    deviation,
    flash_kernel,
    kernel_for,
    slot_attention,
    slot_masks,
)
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
    name: str, assert_forced: Callable[..., None]
) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    prompts = [[3, 4, 5], list(range(1, 22)), [9] * 11]
    generations = Generator(model, max_batch=2).run([GenerationRequest(prompt, 12) for prompt in prompts])
    assert_forced(model, prompts, generations)
    scores = score_tokens(model, [[*p, *g.completion_ids] for p, g in zip(prompts, generations, strict=True)])
    for prompt, generation, score in zip(prompts, generations, scores, strict=True):
        assert score[len(prompt) :] == pytest.approx(generation.logprobs, abs=1e-4)


def test_a_model_with_recurrent_layers_is_refused_by_name() -> None:
    config = Qwen3NextConfig(num_hidden_layers=4)
    config._attn_implementation = "sdpa"
    with pytest.raises(ValueError, match=r"qwen3_next.*linear_attention"):
        slot_masks(config, torch.zeros(1, 1, dtype=torch.long), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_heads_that_share_keys_attend_as_they_do_by_repeated_keys(
    dtype: torch.dtype, num_tokens: int, groups: int
) -> None:
    torch.manual_seed(0)
    query = torch.randn(4, 2 * groups, num_tokens, 16, dtype=dtype)
    key, value = torch.randn(2, 4, 40, 2, 16, dtype=dtype).transpose(2, 3)
    mask = torch.rand(4, 1, num_tokens, 40) < 0.5
    mask[..., 0] = True
    module = torch.nn.Module()
    module.num_key_value_groups = groups  # type: ignore[assignment]
    seen, _ = slot_attention(module, query, key, value, mask, scaling=0.3)
    # Which repeats the keys and values for the heads that share them.
    expected, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    assert seen.shape == (4, num_tokens, 2 * groups, 16)
    assert torch.allclose(seen, expected, atol=1e-6 if dtype is torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_rows_of_slots_sample_as_one_forward_pass_does(
    dtype: torch.dtype, plain_kernel: Kernel, assert_forced: Callable[..., None]
) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval().to(dtype)
    prompts = [[3, 4, 5], list(range(1, 22)), [9] * 11, [3, 4, 5], [3, 4, 5, 6]]
    generator = Generator(model, max_batch=2, kernel=plain_kernel)
    for turn in range(2):
        requests = [GenerationRequest(prompt, 5 + 3 * i, seed=turn) for i, prompt in enumerate(prompts)]
        generations = generator.run(requests)
        assert_forced(model, prompts, generations, tolerance=1e-4 if dtype is torch.float32 else 0.1)
        prompts = [[*p, *g.completion_ids, 7] for p, g in zip(prompts, generations, strict=True)]


def test_a_kernel_is_not_given_what_it_does_not_compute(plain_kernel: Kernel) -> None:
    states = torch.zeros(1, 2, 1, 8)
    places = PackedLayout.of_decoding(torch.zeros(1, dtype=torch.long), 1)
    with pytest.raises(ValueError, match="softcap"):
        slot_attention(torch.nn.Module(), states, states, states, None, layout=places, kernel=plain_kernel, softcap=5.0)


class Operations(TorchDispatchMode):
    """Notes what is computed, and the size of each new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        self.names.add(function._schema.name)
        is_view = any(argument.alias_info is not None for argument in function._schema.arguments)
        if isinstance(result, torch.Tensor) and not is_view:
            self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_recorded_step_copies_no_keys_and_waits_for_nothing(is_packed: bool) -> None:
    torch.manual_seed(0)
    shape = {**SHAPE, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    model = LlamaForCausalLM(LlamaConfig(**shape)).eval()
    kernel = (lambda query, *_: query) if is_packed else None
    generator = Generator(model, max_batch=4, recorder=lambda run: run, kernel=kernel)
    for i in range(4):
        generator.submit(GenerationRequest([3 + i] * (300 + i), 50, seed=i))
    for _ in range(3):
        generator.step()
    with Operations() as operations:
        generator.step()
    assert "aten::_local_scalar_dense" not in operations.names, "a value is waited for"
    keys = 4 * 2 * 300 * 8
    assert operations.largest < keys, "a tensor as large as a layer's keys is made at every step"


def test_places_of_rows_say_where_tokens_and_slots_begin() -> None:
    places = PackedLayout.of_rows(2, [0, 5], [3, 1], 100)
    assert places.query_starts.tolist() == [0, 3, 4]
    assert places.key_starts.tolist()[:2] == [200, 300]
    assert places.key_lengths.tolist() == [3, 6]
    assert (places.max_queries, places.max_keys) == (3, 6)
    assert {tensor.dtype for tensor in places[:3]} == {torch.int32}
    # Those of decoding are those of rows of one token.
    seen = PackedLayout.of_decoding(torch.tensor([4, 0, 99]), 100)
    expected = PackedLayout.of_rows(0, [4, 0, 99], [1, 1, 1], 100)
    assert all(map(torch.equal, seen[:3], expected[:3]))


def test_a_model_on_a_cpu_is_attended_to_with_masks(model: PreTrainedModel) -> None:
    assert kernel_for(model) is None


@pytest.mark.gpu
@pytest.mark.parametrize(("width", "groups"), [(128, 2), (64, 1), (64, 7), (32, 4), (256, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_on_cuda_compute_what_attention_written_out_does(
    dtype: torch.dtype, width: int, groups: int, plain_kernel: Kernel
) -> None:
    from stillhouse.serving.decode_kernel import decode_kernel

    torch.manual_seed(0)
    rows, columns, heads = 90, 300, 2
    key, value = torch.randn(2, (rows + 1) * columns, heads, width, device="cuda", dtype=dtype)
    query = torch.randn(1, heads * groups, rows, width, device="cuda", dtype=dtype)[0].transpose(0, 1)
    decoding = PackedLayout.of_decoding(torch.randint(0, columns, (rows,), device="cuda"), columns)
    expected = plain_kernel(query, key, value, decoding, 0.1)
    for kernel in (flash_kernel, decode_kernel):
        assert torch.allclose(kernel(query, key, value, decoding, 0.1), expected, atol=2e-2), kernel.__name__
    prefill = PackedLayout.of_rows(3, [0, 100, 7], [40, 1, 49], columns)
    prefill = PackedLayout._make(value.cuda() if isinstance(value, torch.Tensor) else value for value in prefill)
    expected = plain_kernel(query, key, value, prefill, None)
    assert torch.allclose(flash_kernel(query, key, value, prefill, None), expected, atol=2e-2)


def test_a_kernel_that_misses_a_token_is_told_from_one_that_is_right(plain_kernel: Kernel) -> None:
    def sees_too_little(query: Any, key: Any, value: Any, places: PackedLayout, scale: float | None) -> torch.Tensor:
        shorter = places._replace(key_lengths=(places.key_lengths - 1).clamp(min=1))
        return plain_kernel(query, key, value, shorter, scale)

    cpu = torch.device("cpu")
    assert deviation(plain_kernel, cpu) < TOLERANCE
    assert deviation(sees_too_little, cpu) > 2 * TOLERANCE
