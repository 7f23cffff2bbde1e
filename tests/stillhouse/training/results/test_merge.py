import json
import logging
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from peft.tuners.lora import Linear
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from stillhouse.errors import ConfigError, TrainingError
from stillhouse.training.results.merge import difference, merge_into

Rows = list[list[int]]


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    return tmp_path / "merged"


@torch.no_grad()
def logits(folder: Path, loader: type, rows: Rows) -> list[torch.Tensor]:
    model = loader.from_pretrained(folder, dtype=torch.float32).eval()
    return [model(input_ids=torch.tensor([row])).logits[0] for row in rows]


@pytest.mark.parametrize(
    "options",
    [{}, {"use_rslora": True}, {"use_dora": True}, {"target_modules": ["q_proj", "down_proj"]}],
    ids=["lora", "rslora", "dora", "two layers"],
)
def test_merged_weights_answer_as_base_and_adapter_do(
    make_adapter, rows: Rows, merged: Path, tmp_path: Path, options: dict[str, object]
):
    folder = make_adapter(**options)
    check = merge_into(folder, merged, rows)
    expected = logits(folder, AutoPeftModelForCausalLM, rows)
    assert difference(logits(merged, AutoModelForCausalLM, rows), expected) < 1e-5
    assert check.difference < 1e-5
    # What was compared is not the base with itself.
    plain = difference(logits(tmp_path / "base", AutoModelForCausalLM, rows), expected)
    assert check.effect == pytest.approx(plain, rel=1e-3)
    assert check.effect > 0.1
    # The embedding was tied and still is.
    weights = load_file(merged / "model.safetensors")
    assert weights.keys() == load_file(tmp_path / "base/model.safetensors").keys()
    assert (merged / "generation_config.json").is_file()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_merged_weights_are_summed_in_float32_and_rounded_once_to_the_type_of_the_base(
    make_adapter, rows: Rows, merged: Path, tmp_path: Path, dtype: torch.dtype
):
    folder = make_adapter(dtype)
    check = merge_into(folder, merged, rows)
    base = load_file(tmp_path / "base/model.safetensors")
    adapter = load_file(folder / "adapter_model.safetensors")
    name = "model.layers.1.mlp.up_proj"
    lora_b, lora_a = (adapter[f"base_model.model.{name}.lora_{part}.weight"] for part in "BA")
    expected = (base[f"{name}.weight"].float() + 8 / 4 * lora_b @ lora_a).to(dtype)
    weights = load_file(merged / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {dtype}
    torch.testing.assert_close(weights[f"{name}.weight"], expected, rtol=0, atol=0)
    assert check.dtype == str(dtype).removeprefix("torch.")
    assert 1e-5 < check.difference <= check.tolerance < 0.05


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_an_adapter_at_one_end_of_tied_weights_unties_them(make_adapter, rows: Rows, merged: Path, target: str):
    folder = make_adapter(target_modules=["q_proj", target])
    check = merge_into(folder, merged, rows)
    expected = logits(folder, AutoPeftModelForCausalLM, rows)
    assert difference(logits(merged, AutoModelForCausalLM, rows), expected) < 1e-5
    assert check.effect > 0.1
    assert json.loads((merged / "config.json").read_text())["tie_word_embeddings"] is False


def test_weights_that_answer_otherwise_are_an_error_with_the_difference(make_adapter, rows: Rows, merged: Path):
    folder = make_adapter()
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    save_file({name: weight * 1e4 for name, weight in weights.items()}, file)
    with pytest.raises(TrainingError, match=r"before they were rounded.* 0\.0001"):
        merge_into(folder, merged, rows)
    assert not (merged).exists()


def _deep(folder: Path, num_layers: int, size: float) -> Path:
    """A bfloat16 base of random weights, and over it an adapter whose second matrices have entries of this size."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=640, hidden_size=32, intermediate_size=48, num_hidden_layers=num_layers, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, initializer_range=0.1,
    )  # fmt: skip
    base = Qwen3ForCausalLM(config).bfloat16()
    base.save_pretrained(folder / "base")
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, size)
    adapted.peft_config["default"].base_model_name_or_path = str(folder / "base")
    adapted.save_pretrained(folder / "adapter")
    return folder / "adapter"


@pytest.mark.parametrize(("num_layers", "size"), [(2, 0.5), (8, 0.005), (32, 0.05), (32, 2.0)])
def test_a_deep_or_heavily_trained_student_is_merged_however_much_rounding_changes_it(
    rows: Rows, merged: Path, tmp_path: Path, num_layers: int, size: float
):
    check = merge_into(_deep(tmp_path, num_layers, size), merged, rows)
    assert 1e-3 < check.difference <= check.tolerance
    assert check.effect > 5 * check.difference


_delta = Linear.get_delta_weight


@pytest.mark.parametrize(
    "fault",
    [lambda delta: 0 * delta, lambda delta: 1.1 * delta, lambda delta: delta.t()],
    ids=["missing", "scaled", "transposed"],
)
def test_a_merge_that_is_wrong_in_one_layer_of_many_is_an_error(
    rows: Rows, merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault
):
    folder = _deep(tmp_path, 32, 0.02)
    merges = iter(range(10**6))

    def faulty(layer: Linear, adapter: str) -> torch.Tensor:
        delta = _delta(layer, adapter)
        return fault(delta) if delta.shape == (32, 32) and next(merges) == 40 else delta

    monkeypatch.setattr(Linear, "get_delta_weight", faulty)
    with pytest.raises(TrainingError, match="before they were rounded"):
        merge_into(folder, merged, rows)


def test_merged_layers_that_were_swapped_on_the_way_to_the_disk_are_an_error(
    rows: Rows, merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save = PreTrainedModel.save_pretrained

    def swapped(model: PreTrainedModel, output: Path) -> None:
        first, second = (model.model.layers[number].self_attn.q_proj for number in (5, 6))
        first.weight, second.weight = second.weight, first.weight
        save(model, output)

    folder = _deep(tmp_path, 8, 0.005)
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", swapped)
    with pytest.raises(TrainingError, match="from the disk in bfloat16"):
        merge_into(folder, merged, rows)


def test_an_adapter_too_weak_for_the_type_of_the_base_is_warned_of(
    make_adapter, rows: Rows, merged: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        check = merge_into(make_adapter(torch.bfloat16, scale=1e-4), merged, rows)
    assert check.difference > check.effect / 2
    assert "most of what was learnt is lost" in caplog.text


def test_a_folder_without_an_adapter_and_a_quantised_base_are_refused(
    make_adapter, rows: Rows, merged: Path, tmp_path: Path
):
    folder = make_adapter()
    with pytest.raises(ConfigError, match=r"no adapter_config\.json"):
        merge_into(tmp_path / "base", merged, rows)
    config = json.loads((tmp_path / "base/config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "base/config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="quantised"):
        merge_into(folder, merged, rows)
    (tmp_path / "base/config.json").unlink()
    with pytest.raises(ConfigError, match="base' cannot be loaded"):
        merge_into(folder, merged, rows)
