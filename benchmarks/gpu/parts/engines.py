"""On-policy distillation as a job runs it, sampled by a vLLM that the run starts, or by transformers in its process.

0.6B from 1.7B, all weights, exact reverse KL, 256 completions of 512 tokens a step after prompts of 128. On one device
vLLM sleeps while the student is trained; `sync_s` is what it takes to wake it and hand the weights over. VLLM_PYTHON
names the Python of its environment, by default the one that `make vllm` makes.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.bench import Bench, Unavailable
from benchmarks.gpu.models import build, shape_of
from benchmarks.gpu.parts.on_policy import equal_lengths
from benchmarks.gpu.plan import Row
from benchmarks.on_policy.workload import prompts
from benchmarks.sft.workload import SHAPES, word_tokenizer
from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.vllm.environment import vllm_python
from stillhouse.progress.state import NoProgress
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.run_job import run_job
from stillhouse.types import Prompt, PromptMetadata

_NUM_STEPS: Final = 4
_SPLIT: Final = ("sync_s", "sample_s", "score_s", "train_s", "step_s", "log_ratio_mean", "peak_memory_gib")


def measure(row: Row, bench: Bench) -> None:
    """Distils, and records the split of the last steps."""
    with tempfile.TemporaryDirectory() as folder:
        runtime = _runtime(row.options["engine"], Path(folder), bench)
        job = _job(Path(folder), runtime, bench)
        facts = run_job(job, NoProgress())
        rows = [json.loads(line) for line in (job.work_dir / "metrics.jsonl").read_text().splitlines()]
        # The first steps start the server and warm it up.
        timed = [row["metrics"] for row in rows if row["step"] > _NUM_STEPS // 2]
        means = {name: sum(one[f"on_policy/{name}"] for one in timed) / len(timed) for name in _SPLIT}
        bench.record({**means, "sampled_tokens": facts["sampled_tokens"]})


def _runtime(engine: str, folder: Path, bench: Bench) -> RuntimeConfig:
    settings: dict[str, Any] = {"engine": engine, "device": bench.device.type, "store": str(folder / "store")}
    if engine == "vllm":
        settings["vllm_python"] = os.environ.get("VLLM_PYTHON")
    runtime = RuntimeConfig(**settings)
    try:
        vllm_python(runtime)
    except ConfigError as error:
        raise Unavailable(str(error)) from error
    return runtime


def _job(folder: Path, runtime: RuntimeConfig, bench: Bench) -> TrainJob:
    """Write models and prompts, and return the job that trains on them."""
    lengths, count = (equal_lengths(16, 8), 4) if bench.tiny else (equal_lengths(128, 512), 256)
    # vLLM's kernels for the CPU take no narrower heads.
    student, teacher = (SHAPES["narrow"] if bench.tiny else shape_of(size, bench) for size in ("0.6B", "1.7B"))
    for seed, (name, shape) in enumerate((("student", student), ("teacher", teacher))):
        build(shape, bench, parameters="frozen", seed=seed).causal_lm.save_pretrained(folder / name)
        word_tokenizer(shape.vocabulary).save_pretrained(folder / name)
    rows = prompts(_NUM_STEPS * count, student.vocabulary, 0, lengths=lengths)
    write_jsonl(folder / "prompts.jsonl", [Prompt(row["id"], row["messages"], tools=[]) for row in rows])
    write_jsonl(folder / "metadata.jsonl", list[PromptMetadata]())
    config = {
        "algorithm": "divergence",
        "num_steps": _NUM_STEPS,
        "prompts_per_step": count,
        "max_tokens": lengths.completion,
        "max_turns": 1,
        "learning_rate": 1e-5,
        "trainer": {"microbatch_tokens": 256 if bench.tiny else 1 << 15, "log_every_steps": 1},
    }
    return TrainJob(
        method="on_policy",
        student_ref=str(folder / "student"),
        teacher_ref=str(folder / "teacher"),
        student=StudentConfig(model=str(folder / "student"), parameters="full", dtype="bfloat16", max_length=1024),
        on_policy=OnPolicyConfig(**config),
        prompts_file=folder / "prompts.jsonl",
        metadata_file=folder / "metadata.jsonl",
        work_dir=folder / "work",
        output_dir=folder / "trained",
        runtime=runtime,
    )
