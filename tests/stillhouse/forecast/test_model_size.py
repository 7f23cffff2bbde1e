"""Sizes told from files, against the models themselves."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig, TrainerConfig
from stillhouse.forecast.model_size import ModelSize
from stillhouse.training.model.adapters import new_adapter
from stillhouse.training.model.memory import estimate_memory
from stillhouse.training.model.student import Student

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_hidden_layers": 4,
    "vocab_size": 640,
}


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_tables_and_adapters_are_counted_exactly(tmp_path: Path, is_tied: bool, dtype: torch.dtype) -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=is_tied)).to(dtype)
    model.save_pretrained(tmp_path)
    size = ModelSize(str(tmp_path))
    # A file has a header beside its weights.
    assert size.weights == pytest.approx(model.num_parameters(), rel=0.002)
    assert size.tables == 640 * 512 * (1 if is_tied else 2)
    adapted = new_adapter(model, StudentConfig(lora_rank=8), 0)
    assert size.adapter * 8 == adapted.get_nb_trainable_parameters()[0]


@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_what_a_step_adds_is_about_what_is_counted_once_the_student_is_loaded(tmp_path: Path, parameters: str) -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE))
    model.save_pretrained(tmp_path)
    tokenizer, trained = load_tokenizer("embedded:student", {}), model.requires_grad_(True)
    if parameters == "lora":
        trained = new_adapter(model.to(torch.bfloat16), StudentConfig(), 0)
    student = Student(trained.eval(), model, tokenizer, "shape", torch.bfloat16)
    counted = estimate_memory(student, TrainerConfig(), 4096, checkpointed=True, compiled=True)
    told = ModelSize(str(tmp_path)).step(4096, 2, trains_all=parameters == "full", compares=False)
    assert told == pytest.approx(counted.kept + counted.passing, rel=0.15)
