"""Students that leave: small bases of many kinds, trained, published, and read by whatever transformers there is."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import RuntimeConfig, SftConfig, StudentConfig
from stillhouse.embedded import embedded_path
from stillhouse.progress.state import NoProgress
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.models import load_model
from stillhouse.training.job import TrainJob
from stillhouse.training.results.export import export_student
from stillhouse.training.results.portable import make_portable
from stillhouse.training.run_job import run_job

READER = Path(__file__).parent / "plain_reader.py"
QUESTION = "How much are 3 kettles at 12 coins?"
ANSWER = {"role": "assistant", "content": "The answer is 36."}
MAX_TOKENS = 128
"""Of the code in the card."""
SIZES = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 512, "eos_token_id": 0, "pad_token_id": 0,
    "bos_token_id": None, "initializer_range": 0.3,
}  # fmt: skip


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5e3, **settings}}


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LAYERS = {"full_attention": rope("linear", factor=8.0)["rope_parameters"],
          "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}  # fmt: skip
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("qwen3", {"tie_word_embeddings": True}),
    "untied": ("qwen3", {"tie_word_embeddings": False}),
    "padded": ("qwen3", {"tie_word_embeddings": True, "vocab_size": 640}),
    "padded and untied": ("llama", {"tie_word_embeddings": False, "vocab_size": 640}),
    "theta": ("llama", rope("default")),
    "linear": ("llama", rope("linear", factor=4.0)),
    "dynamic": ("qwen2", rope("dynamic", factor=4.0)),
    "llama3": ("llama", rope("llama3", factor=8.0, **LLAMA3)),
    "yarn": ("qwen3", rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "layers": ("gemma3_text", {"rope_parameters": LAYERS, "sliding_window": 8, "query_pre_attn_scalar": 8,
                               "layer_types": ["sliding_attention", "full_attention"]}),
    "experts": ("qwen3_moe", EXPERTS),
    "neox": ("gpt_neox", rope("default", partial_rotary_factor=0.5)),
}  # fmt: skip
"""Untrained base models whose end token is that of a text, although the template ends turns otherwise."""


def make_base(name: str, folder: Path) -> Path:
    """A base of `BASES`; or `base` or `chat`, the embedded student with the one or the other end token."""
    shutil.copytree(embedded_path("student"), folder)
    if name in BASES:
        family, settings = BASES[name]
        tokenizer = load_tokenizer("embedded:student")
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **{"vocab_size": len(tokenizer), **SIZES, **settings})
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        # As it stands on the hub; what a student that was trained over it says is our own.
        make_portable(folder)
    if name != "chat":
        end_with_the_text(folder)
    return folder


def end_with_the_text(folder: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>"},
        "generation_config.json": {"eos_token_id": 0},
        "config.json": {"eos_token_id": 0},
    }
    for name, change in changes.items():
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))


@dataclass(frozen=True, slots=True)
class Published:
    """Folders of one student as it left, and its base."""

    base: Path
    whole: Path
    adapter: Path
    merged: Path

    def bases(self) -> dict[str, str]:
        """What the reader takes."""
        return dict.fromkeys(map(str, (self.whole, self.adapter, self.merged)), str(self.base))


def train_and_publish(name: str, folder: Path) -> Published:
    base = make_base(name, folder / "base")
    rows = folder / "rows.jsonl"
    prompts = [{"role": "user", "content": QUESTION}, {"role": "user", "content": "Who has the most stamps?"}]
    rows.write_text("".join(json.dumps({"messages": [prompt, ANSWER]}) + "\n" for prompt in prompts * 4))
    sft = {"dataset_weight": 0.0, "sources": [{"path": str(rows)}], "batch_size": 4, "learning_rate": 1e-4}
    published = {"whole": folder / "whole", "adapter": folder / "adapter", "merged": folder / "merged"}
    for parameters in ("full", "lora"):
        student = StudentConfig(parameters=parameters, dtype="float32", max_length=512, lora_rank=4)
        job = TrainJob(
            method="sft",
            student_ref=str(base),
            student=student,
            sft=SftConfig.model_validate({**sft, "num_epochs": 1}),
            work_dir=folder / parameters / "work",
            output_dir=folder / parameters / "student",
            runtime=RuntimeConfig(device="cpu", num_threads=1, store=str(folder / "store")),
        )
        run_job(job, NoProgress())
        if parameters == "full":
            export_student(job.output_dir, published["whole"], merge=False)
        else:
            export_student(job.output_dir, published["adapter"], merge=False)
            export_student(job.output_dir, published["merged"], merge=True)
    return Published(base, **published)


def read_plainly(python: str | Path, bases: Mapping[str, str]) -> dict[str, Any]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, READER, QUESTION, json.dumps(bases)], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check(folder: str, seen: Mapping[str, Any]) -> None:
    """Compares what others compute with what is computed here."""
    tokenizer, model = load_tokenizer(folder), load_model(folder, device="cpu")
    prompt = render(tokenizer, [{"role": "user", "content": QUESTION}], None, add_generation_prompt=True)
    assert seen["prompt"] == prompt
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(torch.tensor(seen["logits"]), expected, rtol=1e-4, atol=1e-4)
    ends = stop_token_ids(tokenizer, model.generation_config)
    assert set(seen["ends"]) == ends
    request = GenerationRequest(prompt, max_tokens=MAX_TOKENS, temperature=0.0, stop_ids=ends)
    (done,) = Generator(model).run([request])
    assert seen["completion"] == pytest.approx(done.completion_ids)
    turn_end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert seen["ends"] == list(dict.fromkeys((turn_end, *seen["ends"])))
    assert seen["eos"] == turn_end
