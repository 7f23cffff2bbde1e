import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from stillhouse.embedded import embedded_path
from stillhouse.training.results.portable import make_portable, needs_5
from tests.stillhouse.training.results.students import end_with_the_text

TEXT_END, TURN_START, TURN_END = 0, 1, 2
SCALED = {"rope_type": "linear", "rope_theta": 5e3, "factor": 4.0}
FULL = {"full_attention": SCALED, "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 4096}  # fmt: skip


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """The embedded student as a base model has its ends."""
    folder = Path(shutil.copytree(embedded_path("student"), tmp_path / "student"))
    end_with_the_text(folder)
    return folder


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


def test_every_file_names_the_end_of_a_turn_first_and_keeps_that_of_a_text(student: Path) -> None:
    change(student / "generation_config.json", temperature=0.6, do_sample=True)
    for _ in range(2):
        make_portable(student)
        generation = GenerationConfig.from_pretrained(student)
        assert generation.eos_token_id == [TURN_END, TEXT_END]
        assert (generation.temperature, generation.do_sample) == (0.6, True)
        assert read(student / "config.json")["eos_token_id"] == TURN_END
        assert AutoTokenizer.from_pretrained(student).eos_token_id == TURN_END


def test_without_a_generation_config_the_ends_are_those_of_template_and_tokenizer(student: Path) -> None:
    (student / "generation_config.json").unlink()
    make_portable(student)
    assert GenerationConfig.from_pretrained(student).eos_token_id == [TURN_END, TEXT_END]


def test_a_template_that_writes_the_end_token_keeps_it(student: Path) -> None:
    template = student / "chat_template.jinja"
    template.write_text(template.read_text() + "{%- if not add_generation_prompt %}{{ eos_token }}{% endif -%}")
    before = AutoTokenizer.from_pretrained(student)
    make_portable(student)
    after = AutoTokenizer.from_pretrained(student)
    conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    one, other = (tokenizer.apply_chat_template(conversation, tokenize=False) for tokenizer in (before, after))
    assert one == other
    assert set(GenerationConfig.from_pretrained(student).eos_token_id) == {TURN_END, TEXT_END}


def test_transformers_4_finds_the_class_and_the_special_tokens(student: Path) -> None:
    tokens = ["<|im_start|>", "<|im_end|>"]
    change(student / "tokenizer_config.json", extra_special_tokens=tokens)
    make_portable(student)
    written = read(student / "tokenizer_config.json")
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert written["model_input_names"] == ["input_ids", "attention_mask"]
    assert (written["additional_special_tokens"], "extra_special_tokens" in written) == (tokens, False)
    assert AutoTokenizer.from_pretrained(student).extra_special_tokens == tokens


@pytest.mark.parametrize(
    ("family", "settings", "older"),
    [
        ("qwen3", {}, {"rope_theta": 10000.0, "torch_dtype": "float32"}),
        ("llama", {"rope_parameters": SCALED},
         {"rope_theta": 5e3, "rope_scaling": {"rope_type": "linear", "factor": 4}}),
        ("gemma3_text", {"rope_parameters": FULL, "layer_types": ["full_attention", "sliding_attention"]},
         {"rope_theta": 5e3, "rope_local_base_freq": 700, "rope_scaling": {"rope_type": "linear", "factor": 4}}),
        ("phi3", {"rope_parameters": LONG, "max_position_embeddings": 131072},
         {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}}),
        ("gpt_neox", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e3, "partial_rotary_factor": 0.5}},
         {"rotary_emb_base": 5e3, "rotary_pct": 0.5}),
        ("qwen3_moe", {"num_experts": 4}, {"num_experts": 4}),
    ],
)  # fmt: skip
def test_settings_stand_under_the_names_of_transformers_4_too(
    family: str, settings: dict[str, Any], older: dict[str, Any], student: Path
) -> None:
    small = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "dtype": "float32"}
    AutoConfig.for_model(family, **small, **settings).save_pretrained(student)
    before = AutoConfig.from_pretrained(student).rope_parameters
    assert needs_5(student)
    make_portable(student)
    written = read(student / "config.json")
    assert older.items() <= written.items()
    assert not needs_5(student)
    after = AutoConfig.from_pretrained(student).rope_parameters
    after.pop("type", None)
    assert after == before


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("mamba2", {"head_dim": 64, "num_heads": 1}),
        # Of a factor beside the length that it follows from, transformers 4 has only the length.
        (
            "phi3",
            {"rope_parameters": {**LONG, "factor": 3.0}, "max_position_embeddings": 131072, "num_attention_heads": 4},
        ),
    ],
)
def test_what_transformers_4_would_compute_otherwise_is_said(
    family: str, settings: dict[str, Any], student: Path
) -> None:
    AutoConfig.for_model(family, hidden_size=32, **settings).save_pretrained(student)
    make_portable(student)
    assert needs_5(student)
    assert "rope_scaling" not in read(student / "config.json")
