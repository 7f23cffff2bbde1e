"""TRL's `DistillationTrainer` on the prompts, batches and settings of an on-policy training here; with TRL on the path.

python -m benchmarks.science.trl_side JOB.json RECORD.json
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.on_policy.sides.job import OnPolicyJob, OnPolicyRecord
from benchmarks.on_policy.sides.trl import train


def main(job: OnPolicyJob) -> OnPolicyRecord:
    """Trains on the rows in their order; the settings say where TRL saves students on the way."""
    torch.set_num_threads(job.num_threads)
    student, teacher = (
        AutoModelForCausalLM.from_pretrained(f"{job.folder}/{name}", dtype=torch.float32)
        for name in ("student", "teacher")
    )
    settings = {
        "max_steps": job.num_steps,
        "per_device_train_batch_size": job.batch_size,
        "learning_rate": job.learning_rate,
        "weight_decay": job.weight_decay,
        "use_cpu": True,
        "bf16": False,
        "dataloader_pin_memory": False,
    }
    messages = [row["messages"] for row in job.rows()]
    tokenizer = AutoTokenizer.from_pretrained(f"{job.folder}/student")
    return train(student, teacher, tokenizer, messages, settings | job.settings)


if __name__ == "__main__":
    main(OnPolicyJob.read(Path(sys.argv[1]))).write(Path(sys.argv[2]))
