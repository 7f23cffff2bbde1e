"""Run by `test_trl.py` in a process of its own: TRL trains on the files of a dataset as they are."""

import json
import sys

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

COMMON = {
    "max_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1, "save_strategy": "no", "report_to": [],
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "max_length": 512,
}  # fmt: skip


def main(folder: str, student: str, scratch: str) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(student)
    rows = load_dataset(folder, cache_dir=f"{scratch}/cache")
    sft = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(student), processing_class=tokenizer, train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        args=SFTConfig(output_dir=f"{scratch}/sft", assistant_only_loss=True, **COMMON),
    )  # fmt: skip
    sft.train()
    batches = [
        pair for batch in sft.get_train_dataloader() for pair in zip(batch["input_ids"], batch["labels"], strict=True)
    ]
    found = {
        "sft_losses": [entry["loss"] for entry in sft.state.log_history if "loss" in entry],
        "texts": [tokenizer.decode(ids).replace("<|endoftext|>", "") for ids, _ in batches],
        "supervised": [tokenizer.decode(ids[labels != -100]) for ids, labels in batches],
    }
    with open(f"{scratch}/found.json", "w", encoding="utf-8") as file:
        json.dump(found, file)


main(*sys.argv[1:])
