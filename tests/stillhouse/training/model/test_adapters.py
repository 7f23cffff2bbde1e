import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.ranks import Ranks
from tests.stillhouse.training.trainings import disturb

CPU = torch.device("cpu")
ALONE = Ranks.single(CPU)
INPUTS = torch.tensor([[5, 6, 7, 8]])
RANK, ALPHA = 4, 8.0
VARIANTS = ("lora", "rslora")
LINEAR = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def config(**changes: object) -> StudentConfig:
    settings = {"parameters": "lora", "lora_rank": RANK, "lora_alpha": ALPHA, "dtype": "float32", "max_length": 512}
    return StudentConfig.model_validate(settings | changes)


def logits(student: Student) -> torch.Tensor:
    with torch.no_grad():
        return student.causal_lm(input_ids=INPUTS).logits


def trained(student: Student, part: str) -> dict[str, torch.Tensor]:
    """Parameters of one kind by the name of their layer."""
    return {name.partition(f".{part}")[0]: p for name, p in student.trained_parameters() if f".{part}." in name}


@pytest.fixture
def adapter_folder(tiny_model: str, tmp_path: Path) -> Path:
    disturb(load_student(tiny_model, config(), CPU, seed=0)).save(tmp_path / "first", ALONE)
    return tmp_path / "first"


@pytest.mark.parametrize("variant", VARIANTS)
def test_new_adapter_changes_nothing(tiny_model: str, variant: str):
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    student = load_student(tiny_model, config(lora_variant=variant), CPU, seed=0)
    torch.testing.assert_close(logits(student), base(input_ids=INPUTS).logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_merged_adapter_is_what_its_paper_says_and_gives_the_logits_of_the_adapter(
    tiny_model: str, tmp_path: Path, variant: str
):
    student = disturb(load_student(tiny_model, config(lora_variant=variant), CPU, seed=0))
    student.save(tmp_path / "adapter", ALONE)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"] == LINEAR
    merged = load_student(str(tmp_path / "adapter"), config(parameters="full"), CPU, seed=0)
    torch.testing.assert_close(logits(merged), logits(student), rtol=1e-4, atol=1e-5)
    assert all(p.requires_grad for p in merged.causal_lm.parameters())

    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    first, second = trained(student, "lora_A"), trained(student, "lora_B")
    scale = ALPHA / (RANK**0.5 if variant == "rslora" else RANK)
    assert len(first) == 2 * len(LINEAR)
    for layer, matrix in first.items():
        name = layer.removeprefix("base_model.model.") + ".weight"
        expected = base.get_parameter(name) + scale * second[layer] @ matrix
        torch.testing.assert_close(merged.causal_lm.get_parameter(name), expected, rtol=1e-5, atol=1e-6)
    with student.model.disable_adapter(), torch.no_grad():
        torch.testing.assert_close(logits(student), base(input_ids=INPUTS).logits, rtol=0, atol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_trained_is_float32_over_half_precision_weights_and_all_of_it_learns(tiny_model: str, variant: str):
    student = disturb(load_student(tiny_model, config(lora_variant=variant, dtype="bfloat16"), CPU, seed=0))
    parameters = dict(student.trained_parameters())
    assert {name.split(".lora_")[1].split(".")[0] for name in parameters} == {"A", "B"}
    assert all(p.dtype is torch.float32 for p in parameters.values())
    assert all(p.dtype is torch.bfloat16 for p in student.causal_lm.parameters() if not p.requires_grad)
    with student.precision():
        student.causal_lm(input_ids=INPUTS).logits.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in parameters.values())


def test_only_the_named_layers_get_an_adapter(tiny_model: str):
    student = load_student(tiny_model, config(lora_targets=("q_proj", "layers.1.mlp.up_proj")), CPU, seed=0)
    layers = [name.removeprefix("base_model.model.model.layers.") for name in trained(student, "lora_A")]
    assert layers == ["0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.up_proj"]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("q_proj", "qkv_proj"), rf"'qkv_proj'.*{', '.join(map(repr, LINEAR))}"),
        (("proj",), "'proj'"),
        (("q_norm",), "'q_norm'"),
        (("all-linear", "q_proj"), "`all-linear`"),
        (("q_proj", "lm_head"), "'lm_head'.*output layer"),
        (("embed_tokens",), "'embed_tokens'.*output layer"),
    ],
)
def test_layers_that_cannot_have_an_adapter_are_refused(tiny_model: str, targets: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        load_student(tiny_model, config(lora_targets=targets), CPU, seed=0)


def test_earlier_adapter_is_continued_with_the_dropout_of_the_config(adapter_folder: Path):
    same, dropping = (
        load_student(str(adapter_folder), config(lora_dropout=share), CPU, seed=0) for share in (0.0, 0.5)
    )
    torch.testing.assert_close(logits(dropping), logits(same), rtol=0, atol=0)
    for student in (same, dropping):
        student.model.train()
    torch.testing.assert_close(logits(same), logits(same), rtol=0, atol=0)
    assert not torch.equal(logits(dropping), logits(dropping))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_rank": 8}, r"student\.lora_rank = 8.* 4"),
        ({"lora_alpha": 16.0}, r"student\.lora_alpha = 16\.0.* 8\.0"),
        ({"lora_variant": "rslora"}, r"student\.lora_variant = rslora.* lora"),
        ({"lora_targets": ("q_proj",)}, r"lora_targets.*'q_proj'\] \(2.*\(14\)"),
    ],
)
def test_adapter_of_another_shape_is_not_continued(adapter_folder: Path, changes: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        load_student(str(adapter_folder), config(**changes), CPU, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "DoRA"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
    ],
)
def test_foreign_adapter_that_the_config_cannot_describe_is_refused(
    adapter_folder: Path, settings: dict[str, object], message: str
):
    file = adapter_folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(ConfigError, match=message):
        load_student(str(adapter_folder), config(), CPU, seed=0)


def test_adapter_that_trains_more_than_its_matrices_is_not_continued(tiny_model: str, tmp_path: Path):
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    settings = LoraConfig(target_modules=LINEAR, r=RANK, lora_alpha=ALPHA, modules_to_save=["norm"])
    get_peft_model(base, settings).save_pretrained(tmp_path)
    load_tokenizer(tiny_model).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="norm"):
        load_student(str(tmp_path), config(), CPU, seed=0)


@pytest.mark.parametrize("parameters", ["lora", "full"])
def test_adapter_that_does_not_fit_its_base_is_named(tiny_model: str, adapter_folder: Path, parameters: str):
    wider = adapter_folder / "adapter_config.json"
    wider.write_text(wider.read_text().replace(tiny_model, "embedded:student"))
    with pytest.raises(ConfigError, match="first does not fit"):
        load_student(str(adapter_folder), config(parameters=parameters), CPU, seed=0)
