import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.training.results.write import write_results

MakeAdapter = Callable[..., Path]


@pytest.fixture
def make_adapter(tiny_model: str, tmp_path: Path) -> MakeAdapter:
    """Writes a folder with a base of some type and one with an adapter of random weights over it; the latter."""

    def make(dtype: torch.dtype = torch.float32, scale: float = 1.0, **options: Any) -> Path:
        base = AutoModelForCausalLM.from_pretrained(tiny_model).to(dtype)
        base.save_pretrained(tmp_path / "base")
        torch.manual_seed(1)
        settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": False, **options}
        adapted = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name or "lora_embedding_B" in name:
                    parameter.mul_(scale)
                if "magnitude" in name:
                    parameter.mul_(1.1)
        adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
        adapted.save_pretrained(tmp_path / "adapter")
        load_tokenizer(tiny_model).save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter"

    return make


@pytest.fixture(scope="session")
def rows(tiny_model: str) -> list[list[int]]:
    """Two rendered conversations."""
    tokenizer = load_tokenizer(tiny_model)
    questions = ("How much are 3 kettles at 12 coins?", "Who has the most stamps?")
    return [
        render(tokenizer, [{"role": "user", "content": question}], None, add_generation_prompt=True)
        for question in questions
    ]


@pytest.fixture
def make_student(make_adapter, new_sft_job, tmp_path: Path) -> Callable[..., Path]:
    """Writes an adapter's folder with all that lies beside it, as training leaves it."""

    def make(*, merge: bool = False, **options: Any) -> Path:
        folder = make_adapter(**options)
        work_dir = tmp_path / "work"
        work_dir.mkdir(exist_ok=True)
        metrics = [
            {"step": 0, "metrics": {"sft/validation_loss": 3.5}},
            {"step": 10, "metrics": {"sft/loss": 2.0, "sft/token_accuracy": 0.5, "sft/tokens_per_s": 901.0}},
            {"step": 20, "metrics": {"sft/loss": 1.0, "sft/token_accuracy": 0.9, "sft/validation_loss": 1.25}},
            {"step": 30, "metrics": {"sft/loss": 1.5, "sft/token_accuracy": 0.8, "sft/tokens_per_s": 905.0}},
        ]
        (work_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
        student = StudentConfig(lora_rank=4, lora_alpha=8, dtype="float32", merge=merge)
        fields = {"student_ref": str(tmp_path / "base"), "student": student, "output_dir": folder}
        job = new_sft_job(tmp_path, {"seed": 7}, **fields)
        write_results(job, job.student_ref, {"steps": 30, "trained_tokens": 12345, "seconds": 4.5})
        return folder

    return make
