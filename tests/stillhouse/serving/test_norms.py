import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel

from stillhouse.serving.norms import FusedNorms


def kernels(model: PreTrainedModel) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    return sum(event.count for event in profile.key_averages() if event.key == "aten::rms_norm")


def test_the_model_computes_the_same_by_one_operation_each_and_is_left_as_it_was(model: PreTrainedModel) -> None:
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected = model(tokens).logits
        assert kernels(model) == 0
        with FusedNorms(model, "cpu").in_use():
            assert torch.allclose(model(tokens).logits, expected, atol=1e-4)
            assert kernels(model) == 4 * model.config.num_hidden_layers + 1
        assert torch.equal(model(tokens).logits, expected)
    assert kernels(model) == 0


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_states_and_weights_may_differ_in_type(model: PreTrainedModel, weights: torch.dtype) -> None:
    norm = type(model.model.norm)(32).to(weights)
    torch.nn.init.normal_(norm.weight)
    states = torch.randn(7, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad():
        expected = norm(states)
        with FusedNorms(norm, "cpu").in_use():
            seen = norm(states)
    assert seen.dtype == expected.dtype
    assert torch.allclose(seen.float(), expected.float(), rtol=2e-2, atol=2e-2)


def test_a_normalisation_with_another_formula_is_left_alone() -> None:
    config = Gemma3TextConfig(
        vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    model = Gemma3ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    with FusedNorms(model, "cpu").in_use():
        assert not any("forward" in vars(module) for module in model.modules())


def test_normalisations_on_another_device_are_left_alone(model: PreTrainedModel) -> None:
    with FusedNorms(model).in_use():
        assert not any("forward" in vars(module) for module in model.modules())
