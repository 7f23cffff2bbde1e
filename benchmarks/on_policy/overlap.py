"""What overlapping saves: sampling beside the training, and several processes.

    python -m benchmarks.on_policy.overlap --vllm runs/vllm/bin/python

The same training as a job runs it, with random weights and completions of 192 tokens, exact reverse KL:

    1 process, 2 processes       the transformers engine samples in the processes that train, one thread each
    vLLM, max_staleness 0        a server that the run starts samples a batch, then the student is trained on it
    vLLM, max_staleness 1        it goes on sampling meanwhile

Claims
    losses     of the first step are those of one process to 1e-4.
    overlap    where the trainer waits for 40 % of its time or more with 0, it waits for less than 10 % with 1, or the
               sampler does: the slower of both is never idle.

Learnt
    On two slow cores, shape small, one round: 1 process 20.1 s a step, 2 processes 15.2 s (1.32 times the tokens a
    second). vLLM: 19.5 s a step with 0, of which the trainer waits 43 % for samples, and 15.0 s with 1 (1.31 times), of
    which it waits 0 % for samples; handing over the weights is 2 % of the one step whose split was read.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.frame.rounds import argument_parser, publish
from benchmarks.on_policy.workload import PAIRS, write_workload
from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig
from stillhouse.progress.state import NoProgress
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train
from stillhouse.types import Prompt

_NUM_STEPS: Final = 8
_WARM_UP: Final = 2
_BATCH_SIZE: Final = 16
_IDLE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """Means over the steps after the first two."""

    s_per_step: float
    tokens_per_s: float
    """Sampled."""
    trainer_idle: float
    """Share of the time in which the training waits for a batch."""
    sampler_idle: float
    """Share of the time in which nothing is sampled."""
    first_loss: float


def measured(job: TrainJob) -> Split:
    """Train, and read the split of the steps."""
    facts = train(job, NoProgress())
    lines = (job.work_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [
        {name.removeprefix("on_policy/"): value for name, value in json.loads(line)["metrics"].items()}
        for line in lines
    ]
    timed = rows[_WARM_UP:]
    seconds = sum(row["step_s"] for row in timed)
    waiting = sum(row["trainer_wait_s"] for row in timed) if job.runtime.engine == "vllm" else 0.0
    idle = sum(row.get("sampler_idle_share", 1 - row["sample_s"] / row["step_s"]) * row["step_s"] for row in timed)
    tokens = facts["sampled_tokens"] * len(timed) / len(rows)
    return Split(seconds / len(timed), tokens / seconds, waiting / seconds, idle / seconds, rows[0]["loss"])


def new_job(folder: Path, name: str, runtime: Mapping[str, Any], **on_policy: Any) -> TrainJob:
    """A job on the workload in `folder`."""
    settings = {
        "algorithm": "divergence",
        "num_steps": _NUM_STEPS,
        "prompts_per_step": _BATCH_SIZE,
        "max_tokens": 192,
        "max_turns": 1,
        "trainer": {"log_every_steps": 1, "microbatch_tokens": 2048},
    }
    return TrainJob(
        method="on_policy",
        student_ref=str(folder / "student"),
        teacher_ref=str(folder / "teacher"),
        student=StudentConfig(model=str(folder / "student"), parameters="full", dtype="float32", max_length=1024),
        on_policy=OnPolicyConfig.model_validate(settings | on_policy),
        prompts_file=folder / "prompts.jsonl",
        work_dir=folder / name / "work",
        output_dir=folder / name / "trained",
        runtime=RuntimeConfig(device="cpu", num_threads=1, store=str(folder / name / "store"), **runtime),
    )


def main() -> int:
    """Entry point; the exit status."""
    parser = argument_parser(__doc__)
    made = Path(sys.prefix).with_name(".venv-vllm") / "bin" / "python"
    told = "Python of vLLM's environment, by default that of `make vllm`; without one only processes are compared"
    parser.add_argument("--vllm", default=str(made) if made.exists() else None, help=told)
    parser.add_argument("--shape", choices=PAIRS, default="small")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_workload(folder, PAIRS[chosen.shape], _NUM_STEPS * _BATCH_SIZE)
        rows = map(json.loads, (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines())
        write_jsonl(folder / "prompts.jsonl", [Prompt(row["id"], row["messages"], tools=[]) for row in rows])
        jobs = {
            "1 process": new_job(folder, "1", {}),
            "2 processes": new_job(folder, "2", {"launcher": "torchrun", "num_processes": 2}),
        }
        if chosen.vllm:
            served = {"engine": "vllm", "vllm_python": chosen.vllm}
            jobs |= {f"vLLM, max_staleness {n}": new_job(folder, f"v{n}", served, max_staleness=n) for n in (0, 1)}
        splits: dict[str, Split] = {}
        for name, job in jobs.items():
            splits[name] = split = measured(job)
            print(
                f"{name:24} {split.s_per_step:7.2f} s a step  {split.tokens_per_s:7.0f} tokens/s  "
                f"trainer idle {split.trainer_idle:4.0%}  sampler idle {split.sampler_idle:4.0%}",
                flush=True,
            )
    failures = _failures(splits)
    publish(failures or ["claims hold"], {name: asdict(split) for name, split in splits.items()}, chosen.json)
    return int(bool(failures))


def _failures(splits: Mapping[str, Split]) -> list[str]:
    first = splits["1 process"].first_loss
    failures = []
    if not abs(splits["2 processes"].first_loss - first) <= 1e-4 * abs(first):
        failures.append(f"losses differ: {first} and {splits['2 processes'].first_loss}")
    if "vLLM, max_staleness 1" in splits:
        overlapped = splits["vLLM, max_staleness 1"]
        if min(overlapped.trainer_idle, overlapped.sampler_idle) > _IDLE:
            failures.append("both trainer and sampler wait with max_staleness 1")
    return failures


if __name__ == "__main__":
    sys.exit(main())
