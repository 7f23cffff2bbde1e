"""One side's training on a GPU.

python -m benchmarks.sft.gpu.side FOLDER

The folder holds `job.json` and gets `found.json`.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.sft.gpu.plan import LORA_RANK, SIZES, GpuFound, GpuJob, num_tokens
from benchmarks.sft.workload import word_tokenizer
from stillhouse.config import SftConfig, StudentConfig
from stillhouse.config.training import SftSource
from stillhouse.training.assembly import build_trainer
from stillhouse.training.batching.microbatches import num_inputs, num_targets
from stillhouse.training.batching.order import Mixture
from stillhouse.training.method import Batch
from stillhouse.training.sft.method import Sft
from stillhouse.training.student.adapters import new_adapter
from stillhouse.training.student.student import Student
from stillhouse.training.watching.flops import ModelFlops, model_flops
from stillhouse.training.watching.listener import NoListener
from stillhouse.training.watching.peak import measure_peak_flops
from stillhouse.training.watching.throughput import peak_memory_gib
from stillhouse.types import Sample

_LEARNING_RATE: Final = 1e-5


class Steps:
    """Notes when each step ended, its loss, and the tokens trained on until then, without padding."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.ends_s: list[float] = []
        self.losses: list[float] = []
        self.num_tokens: list[int] = []

    def end(self, loss: float, num_tokens: int) -> None:
        """A step has ended."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.ends_s.append(time.perf_counter())
        self.losses.append(loss)
        self.num_tokens.append(num_tokens)

    def seconds(self) -> list[float]:
        """Of each step but the first."""
        return [after - before for before, after in pairwise(self.ends_s)]

    def rates(self) -> list[float]:
        """Tokens a second of each step but the first."""
        tokens = (after - before for before, after in pairwise(self.num_tokens))
        return [count / second for count, second in zip(tokens, self.seconds(), strict=True)]


class Enough(Exception):
    """Every step is done; what a trainer does at its end would write tens of gigabytes."""


class Watched(NoListener):
    """Hears of our steps.

    Raises:
        Enough: it was the last one.
    """

    def __init__(self, steps: Steps, batches: Sequence[Sequence[Sample]]) -> None:
        self._steps = steps
        self._batches = batches

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """A step has ended."""
        if "sft/loss" in metrics:
            self._steps.end(metrics["sft/loss"], num_tokens(self._batches[:step]))
        if step == len(self._batches):
            raise Enough


class GivenBatches(Sft):
    """SFT on batches made before."""

    def __init__(self, batches: Sequence[Sequence[Sample]], vocabulary: int, config: SftConfig) -> None:
        super().__init__([], [], Mixture((1,), (1.0,), 1, len(batches), 0), [1] * vocabulary, config, {})
        self._batches = batches

    def batch(self, step: int) -> Batch:
        """The batch of `step`."""
        return Batch(self._batches[step])


def build_model(job: GpuJob) -> tuple[Any, PreTrainedModel]:
    """What is trained, and the causal language model in it, with random weights on the job's device."""
    size = SIZES[job.size]
    torch.manual_seed(0)
    dtype = torch.float32 if size.parameters == "full" else torch.bfloat16
    with torch.device(job.device):
        causal_lm = AutoModelForCausalLM.from_config(size.shape.config(), dtype=dtype)
    if size.parameters == "full":
        return causal_lm, causal_lm
    return new_adapter(causal_lm, StudentConfig(lora_rank=LORA_RANK, lora_alpha=2.0 * LORA_RANK), seed=0), causal_lm


def train_ours(job: GpuJob, model: Any, causal_lm: PreTrainedModel, work_dir: Path) -> Steps:
    """Trains with this project's trainer."""
    batches, size = job.batches(), SIZES[job.size]
    vocabulary = size.shape.vocabulary
    config = SftConfig(
        sources=(SftSource(path="none"),),
        learning_rate=_LEARNING_RATE,
        beta2=0.999,
        microbatch_tokens=size.microbatch_tokens,
        compile="on" if job.variant == "compiled" else "off",
        log_every_steps=1,
        divergence_factor=None,
    )
    student = Student(model, causal_lm, word_tokenizer(vocabulary), "random", torch.bfloat16)
    steps = Steps(student.device)
    method = GivenBatches(batches, vocabulary, config)
    listener = Watched(steps, batches)
    trainer = build_trainer(method, student, config, work_dir=work_dir, identity={}, listener=listener, peak_tflops=1.0)
    try:
        trainer.run()
    except Enough:
        return steps
    raise RuntimeError("the trainer ended before its last step was heard of")


def train_trl(job: GpuJob, model: Any, work_dir: Path) -> Steps:
    """Trains with TRL: rows in rectangles of similar length, or packed by TRL, or compiled."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig as TrlConfig
    from trl import SFTTrainer

    batches, size = job.batches(), SIZES[job.size]
    steps = Steps(torch.device(job.device))

    class Callback(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
            if logs and "loss" in logs:
                steps.end(logs["loss"], int(state.num_input_tokens_seen))

    rows = [
        {
            "input_ids": sample.token_ids,
            "labels": [one if said else -100 for one, said in zip(sample.token_ids, sample.loss_mask, strict=True)],
        }
        for batch in batches
        for sample in batch
    ]
    num_passes = size.batch_size // size.microbatch_rows
    settings: dict[str, Any] = {
        "per_device_train_batch_size": size.microbatch_rows,
        "gradient_accumulation_steps": num_passes,
    }
    if job.variant == "packed":
        settings = {"packing": True, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    config = TrlConfig(
        output_dir=str(work_dir), max_steps=len(batches), learning_rate=_LEARNING_RATE, lr_scheduler_type="constant",
        bf16=True, gradient_checkpointing=False, max_length=4096, train_sampling_strategy="sequential",
        torch_compile=job.variant == "compiled", logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        include_num_input_tokens_seen="non_padding", use_cpu=job.device == "cpu", **settings,
    )  # fmt: skip
    SFTTrainer(
        model=model,
        processing_class=word_tokenizer(size.shape.vocabulary),
        train_dataset=Dataset.from_list(rows),
        args=config,
        callbacks=[Callback()],
    ).train()
    return steps


def main(folder: Path) -> None:
    """Trains, and measures."""
    job = GpuJob.read(folder / "job.json")
    device = torch.device(job.device)
    peak_flops = measure_peak_flops(device, torch.bfloat16)
    model, causal_lm = build_model(job)
    flops = model_flops(causal_lm.base_model, causal_lm.get_output_embeddings(), causal_lm.config)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with tempfile.TemporaryDirectory() as work_dir:
        if job.side == "ours":
            steps = train_ours(job, model, causal_lm, Path(work_dir))
        else:
            steps = train_trl(job, model, Path(work_dir))
    tokens_per_s = statistics.median(steps.rates()[job.num_warm_ups - 1 :])
    GpuFound(
        tokens_per_s=tokens_per_s,
        s_per_step=statistics.median(steps.seconds()[job.num_warm_ups - 1 :]),
        mfu=tokens_per_s * _flops_per_token(flops, job.batches()[job.num_warm_ups :]) / peak_flops,
        peak_tflops=peak_flops / 1e12,
        peak_memory_gib=peak_memory_gib(device),
        losses=steps.losses,
    ).write(folder / "found.json")


def _flops_per_token(flops: ModelFlops, batches: Sequence[Sequence[Sample]]) -> float:
    return sum(flops.of_step(map(num_inputs, batch), num_targets(batch)) for batch in batches) / num_tokens(batches)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
