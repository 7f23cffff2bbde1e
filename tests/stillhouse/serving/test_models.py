import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from stillhouse.chat.refs import resolve_model
from stillhouse.errors import ConfigError
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.models import load_model
from stillhouse.serving.score import score_tokens


def test_an_adapter_folder_is_loaded_as_its_base_with_the_adapter_merged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = load_model("embedded:student", device="cpu")
    tokens = torch.tensor([[5, 6, 7, 8]])
    plain = base(tokens).logits
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    adapted.peft_config["default"].base_model_name_or_path = "embedded:student"
    adapted.save_pretrained(tmp_path)
    expected = adapted.eval()(tokens).logits
    merged = load_model(str(tmp_path), device="cpu")
    assert not any("lora" in name for name, _ in merged.named_parameters())
    assert torch.allclose(merged(tokens).logits, expected, atol=1e-4)
    assert not torch.allclose(plain, expected, atol=1e-2)


def test_a_model_with_a_live_adapter_samples_and_scores_with_it() -> None:
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(load_model("embedded:student", device="cpu"), config).eval()
    prompt = [5, 6, 7, 8]
    [generation] = Generator(model).run([GenerationRequest(prompt, 20)])
    tokens = [*prompt, *generation.completion_ids]
    with torch.no_grad():
        logprobs = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    expected = logprobs.gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
    assert generation.logprobs == pytest.approx(expected[3:], abs=1e-4)
    assert score_tokens(model, [tokens])[0][1:] == pytest.approx(expected, abs=1e-4)


def test_a_loaded_model_is_in_evaluation_mode_without_gradients_in_the_type_asked_for() -> None:
    model = load_model("embedded:student", device="cpu", dtype="bfloat16")
    assert not model.training
    assert {(parameter.dtype, parameter.requires_grad) for parameter in model.parameters()} == {(torch.bfloat16, False)}


def test_a_folder_without_a_model_and_weights_that_are_cut_off_are_config_errors_naming_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load_model(str(tmp_path), device="cpu")
    shutil.copytree(resolve_model("embedded:student"), tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="cut"):
        load_model(str(tmp_path / "cut"), device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_asking_for_cuda_where_there_is_none_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="CUDA"):
        load_model("embedded:student", device="cuda")
