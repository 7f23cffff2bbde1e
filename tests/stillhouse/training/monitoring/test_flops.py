from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma4TextConfig,
    Mamba2Config,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
    RwkvConfig,
)

from stillhouse.config import StudentConfig
from stillhouse.training.model.adapters import new_adapter
from stillhouse.training.model.load import load_student
from stillhouse.training.monitoring.flops import AttentionCost, ModelFlops, known_flops, measure_peak_flops, model_flops

SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 2, "vocab_size": 100,
}  # fmt: skip


def flops_of(model: PreTrainedModel) -> ModelFlops:
    return model_flops(model.base_model, model.get_output_embeddings(), model.config)


def without_weights(config: Any) -> PreTrainedModel:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def test_costs_of_a_published_model_are_those_of_its_shape():
    shape = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
    config = Qwen3Config(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, **shape)
    model = without_weights(config)
    full = flops_of(model)
    # Qwen3-0.6B has 440 million weights in its blocks and 156 million in its head.
    assert full.per_input == pytest.approx(6 * 0.440e9, rel=1e-2)
    assert full.per_target == 6 * 1024 * 151_936
    model.requires_grad_(False)
    frozen = flops_of(model)
    assert (frozen.per_input, frozen.per_target) == (full.per_input * 4 / 6, full.per_target * 4 / 6)
    # A token of a row of 2,048 attends to 1,024.5 on average: 0.23 GFLOP forward, and twice that backward.
    attention = (full.of_step([2048], 0) - 2048 * full.per_input) / 2048
    assert attention == pytest.approx(3 * 4 * 28 * 2048 * 1024.5)


@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_linear_layers_cost_what_torch_counts(tiny_model: str, parameters: str):
    config = StudentConfig.model_validate({"parameters": parameters, "dtype": "float32", "lora_rank": 4})
    student = load_student(tiny_model, config, torch.device("cpu"), seed=0)
    # Otherwise torch leaves out the gradient by the first layer's inputs, which nobody asks for.
    student.causal_lm.enable_input_require_grads()
    inputs = torch.randint(100, (2, 30), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        student.causal_lm(input_ids=inputs, use_cache=False).logits.sum().backward()
    counts = counter.get_flop_counts()["Global"]
    counted = sum(count for op, count in counts.items() if str(op) in ("aten.mm", "aten.addmm"))
    flops = model_flops(student.causal_lm.base_model, student.head, student.causal_lm.config)
    assert flops.per_input * 60 + flops.per_target * 60 == counted


def test_attention_costs_what_it_sees():
    costs = ModelFlops(0.0, 0.0, tuple(AttentionCost(1.0, window) for window in (None, 3, 100)))
    lengths = (1, 2, 3, 7, 20)
    pairs = sum(
        sum(key <= query and query - key < (layer.window or 10**9) for query in range(length) for key in range(length))
        for layer in costs.attention
        for length in lengths
    )
    assert costs.of_step(lengths, 5) == pairs


def windows_of(config: PreTrainedConfig) -> list[int | None]:
    return [layer.window for layer in flops_of(without_weights(config)).attention]


def test_windows_are_those_of_the_layers():
    mixed = Qwen3Config(**SMALL, layer_types=["sliding_attention", "full_attention"], use_sliding_window=True)
    assert windows_of(mixed) == [mixed.sliding_window, None]
    assert windows_of(MistralConfig(**SMALL, sliding_window=64)) == [64, 64]
    assert windows_of(Qwen3Config(**SMALL)) == [None, None]


def test_heads_of_another_size_in_some_layers_count_as_they_are():
    layers = ["sliding_attention", "full_attention"]
    config = Gemma4TextConfig(**{**SMALL, "head_dim": 16}, global_head_dim=32, layer_types=layers, sliding_window=8)
    costs = [layer.per_pair for layer in flops_of(without_weights(config)).attention]
    assert costs[1] == 2 * costs[0]


def test_a_model_without_attention_has_no_costs_of_it():
    heads = {"num_heads": 4, "head_dim": 8, "n_groups": 1}
    config = Mamba2Config(hidden_size=16, num_hidden_layers=1, state_size=8, vocab_size=32, **heads)
    assert flops_of(without_weights(config)).attention == ()


def test_a_family_whose_sizes_have_other_names_is_trained_without_its_mfu(caplog: pytest.LogCaptureFixture):
    model = without_weights(Qwen3Config(**SMALL))
    config = RwkvConfig(hidden_size=16, num_hidden_layers=1)
    assert known_flops(model.base_model, model.get_output_embeddings(), config) is None
    assert "mfu is not measured: the operations of RwkvConfig are unknown" in caplog.text


def test_of_many_experts_only_those_a_token_goes_to_count():
    shape = {**SMALL, "num_hidden_layers": 1, "moe_intermediate_size": 16, "num_experts": 8}
    costs = [
        flops_of(without_weights(Qwen3MoeConfig(**shape, num_experts_per_tok=number))).per_input for number in (1, 3)
    ]
    assert costs[1] - costs[0] == 2 * 6 * (3 * 16 * 32)


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("targets", [None, ("all-linear",), ("all-linear", "experts")])
def test_experts_and_their_biases_and_adapters_cost_what_a_token_meets(kind: str, targets: tuple[str, ...] | None):
    shape = {**SMALL, "moe_intermediate_size": 16, "head_dim": 16, "num_experts_per_tok": 2, "pad_token_id": 0}
    settings = AutoConfig.for_model(kind, **shape, num_experts=6, num_local_experts=6, max_position_embeddings=64)
    settings._experts_implementation = "eager"  # torch counts no grouped products
    model = AutoModelForCausalLM.from_config(settings)
    frozen = flops_of(model.requires_grad_(targets is None)).per_input
    if targets:
        new_adapter(model, StudentConfig(lora_rank=4, lora_targets=targets), seed=0)
    model.enable_input_require_grads()
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(60)[None], use_cache=False).logits.sum().backward()
    counts = counter.get_flop_counts()["Global"]
    counted = sum(count for op, count in counts.items() if str(op) in ("aten.mm", "aten.addmm"))
    costs = flops_of(model)
    if targets is None or "experts" not in targets:
        assert (costs.per_input + costs.per_target) * 60 == counted
        return
    # Of each expert's adapter, which peft multiplies with the weights of all experts and not with tokens.
    linear = new_adapter(AutoModelForCausalLM.from_config(settings), StudentConfig(lora_rank=4), seed=0)
    experts = [m for _, m in model.named_modules() if type(m).__name__.endswith("Experts")]
    sizes = [sum(w.shape[1:]) for m in experts for w in m.parameters() if w.ndim == 3]
    assert frozen < costs.per_input == flops_of(linear.base_model.model).per_input + 6 * 2 * 4 * sum(sizes)
    assert costs.per_input * 60 < counted


def test_the_peak_is_one_of_a_machine_and_leaves_the_random_generators_alone():
    measure_peak_flops.cache_clear()
    state = torch.get_rng_state()
    peak = measure_peak_flops(torch.device("cpu"), torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    assert 0 < peak < 1e13


@pytest.mark.gpu
def test_a_gpu_is_faster_in_half_precision():
    device = torch.device("cuda")
    assert measure_peak_flops(device, torch.bfloat16) > 2 * measure_peak_flops(device, torch.float32)
