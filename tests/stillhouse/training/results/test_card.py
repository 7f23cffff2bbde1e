import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from stillhouse.errors import InputError
from stillhouse.training.results.card import write_card
from stillhouse.training.results.record import StudentRecord, read_record

SOURCES = [{"path": "/home/me/chats.jsonl", "weight": 0.5}, {"path": "hf:org/chats", "weight": 1.0}]
SFT = {"seed": 0, "sources": SOURCES}
STUDENT = {"model": "org/small", "parameters": "full", "dtype": "bfloat16"}


def record(**fields: object) -> StudentRecord:
    sources = ["s1", "hf:org/chats[train]"]
    config = {"student_ref": "org/small", "student": STUDENT, "sft": SFT, "sources": sources}
    base = {"method": "sft", "base": "org/small", "started_from": "org/small", "config": config}
    return StudentRecord.model_validate({**base, "facts": {"steps": 10, "best_step": 6}, **fields})


def card(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def rows_of(text: str) -> dict[str, list[str]]:
    """Cells of all tables by the first of their row."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines}


def test_the_card_names_the_data_the_weights_and_the_course_of_training(make_student):
    folder = make_student(use_rslora=True)
    rows = rows_of(card(folder))
    data = read_record(folder).data
    num_tokens = [f"{data['tokens']:,}", f"{data['supervised_tokens']:,}"]
    num_parameters = sum(weight.numel() for weight in load_file(folder / "adapter_model.safetensors").values())
    expected = {
        "supervised fine-tuning": ["dataset", "11", *num_tokens, f"`{data['fingerprint']}`"],
        "adapter": ["rsLoRA, rank 4, alpha 8"],
        "trained parameters": [f"{num_parameters:,}"],
        "optimiser steps": ["30"],
        "`sft/loss`": ["2", "1", "20", "1.5"],
        "`sft/validation_loss`": ["3.5", "1.25", "20", "1.25"],
        "`sft/token_accuracy`": ["0.5", "0.9", "20", "0.8"],
    }
    assert expected.items() <= rows.items()
    assert rows["layers with an adapter"][0].startswith("`down_proj`, `gate_proj`, `k_proj`")
    assert "`sft/tokens_per_s`" not in rows
    assert "# base, distilled from teacher\n" in card(folder)
    assert "learning_rate: 0.0001" in card(folder)
    # The dataset's own card comes along.
    assert "# Teacher trajectories" in (folder / "dataset-card.md").read_text()


def test_equal_students_have_equal_cards_that_name_no_place(make_student, tmp_path: Path):
    folder = make_student()
    first = card(folder)
    other = Path(shutil.copytree(folder, tmp_path / "elsewhere"))
    write_card(other)
    assert card(other) == first
    assert str(tmp_path) not in first


def test_the_front_matter_is_valid_and_names_a_base_only_where_the_hub_knows_it(make_student, tmp_path: Path):
    data = ModelCard.load(make_student(use_dora=True) / "README.md").data
    assert (data.library_name, data.pipeline_tag) == ("peft", "text-generation")
    assert (data.base_model, data.license) == (None, None)
    assert data.tags == ["stillhouse", "distillation", "supervised-fine-tuning", "dora"]
    record().write(tmp_path)
    write_card(tmp_path, license_id="apache-2.0")
    data = ModelCard.load(tmp_path / "README.md").data
    assert (data.library_name, data.base_model, data.license) == ("transformers", "org/small", "apache-2.0")
    assert data.to_dict()["base_model_relation"] == "finetune"
    # An adapter belongs to what is below it, not to what that was made from.
    config = {"base_model_name_or_path": "org/tuned", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "adapter_model.safetensors")
    write_card(tmp_path)
    data = ModelCard.load(tmp_path / "README.md").data
    assert (data.base_model, data.to_dict()["base_model_relation"]) == ("org/tuned", "adapter")
    assert rows_of(card(tmp_path))["trained parameters"] == ["6"]
    assert "vllm serve org/tuned --tokenizer . --generation-config . --enable-lora --max-lora-rank 8" in card(tmp_path)


def test_the_card_of_two_trainings_names_both_and_the_first_base(tmp_path: Path):
    config = {"student_ref": "sft@1", "student": STUDENT, "on_policy": {"seed": 1, "teacher": "/models/big"}}
    data = {"fingerprint": "f" * 8, "rows": 1800}
    fields = {"method": "on_policy", "base": "/store/sft", "config": config, "data": data, "teachers": ("big@2",)}
    record(**fields, before=record()).write(tmp_path)
    write_card(tmp_path, evaluations={"base": {"accuracy": 0.25, "num_prompts": 1200}, "sft": {"teacher_kl": 0.125}})
    text = card(tmp_path)
    assert "[org/small](https://huggingface.co/org/small) with all of its weights trained" in text
    assert "supervised fine-tuning and then by on-policy distillation" in text
    rows = rows_of(text)
    assert rows["on-policy distillation"][:2] == ["prompts", "1,800"]
    assert "| `chats.jsonl`, weight 0.5 |  |  |  | `s1` |" in text
    assert "| `hf:org/chats`, weight 1 |  |  |  | `hf:org/chats[train]` |" in text
    assert rows["base"][0] == "25.0\u202f%"
    assert rows["base"][2] == "1,200"
    assert rows["sft"][-1] == "0.125"
    assert not re.search("/store|/models", text)


def test_the_card_of_several_rounds_names_method_and_data_once(tmp_path: Path):
    data = {"fingerprint": "f" * 8, "rows": 11}
    record(data=data, before=record(data=data, before=record(data=data))).write(tmp_path)
    write_card(tmp_path)
    text = card(tmp_path)
    assert "trained by supervised fine-tuning, 3 times." in text
    assert (text.count("f" * 8), text.count("`s1`")) == (1, 1)


def test_a_local_teacher_that_wrote_and_scored_is_one_teacher(tmp_path: Path):
    config = {"student_ref": "sft@1", "student": STUDENT, "on_policy": {"seed": 1, "teacher": "/models/big"}}
    fields = {"method": "on_policy", "base": "/store/sft", "config": config, "data": {}, "teachers": ("big@2",)}
    sft = record(base="small@5", teachers=("/models/big",))
    record(**fields, before=sft).write(tmp_path)
    write_card(tmp_path)
    assert "# small, distilled from big\n" in card(tmp_path)
    assert "It learnt from `big@2`." in card(tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"r": 12}, "vllm serve BASE --tokenizer . --generation-config . --enable-lora --max-lora-rank 16 --lora"),
        ({"use_dora": True}, "vLLM serves no adapter with use_dora; it serves the weights"),
    ],
)
def test_the_card_says_how_vllm_loads_it(make_student, options: dict[str, object], text: str):
    folder = make_student(**options)
    assert text in card(folder)
    # What vLLM reads of an adapter's config, and what it refuses (vllm/lora/peft_helper.py).
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["r"] == options.get("r", 4)
    assert (config["lora_alpha"], config["bias"], config["modules_to_save"]) == (8, "none", None)
    assert isinstance(config["target_modules"], list)
    assert config["use_dora"] is ("use_dora" in options)


def test_the_card_of_merged_weights_has_the_check_and_the_adapters_card_names_them(make_student):
    folder = make_student(merge=True, use_dora=True)
    assert "stillhouse publish" not in card(folder)
    assert "vllm serve merged" in card(folder)
    merged = card(folder / "merged")
    assert ModelCard(merged).data.library_name == "transformers"
    assert "with a trained adapter merged into its weights" in merged
    (text,) = rows_of(merged)["merged weights"]
    assert re.match(r"float32; their logits differ from .* by \S+e-0[67] of .* 0\.0001 .* from the base's", text)


def test_a_folder_that_is_no_student_is_an_error(tmp_path: Path):
    with pytest.raises(InputError, match=r"student\.json"):
        write_card(tmp_path)
    record().write(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="'target_modules'"):
        write_card(tmp_path)
