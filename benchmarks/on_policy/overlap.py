"""What overlapping saves: sampling beside the training, and several processes.

    python -m benchmarks.on_policy.overlap --vllm runs/vllm/bin/python

A training as a job runs it, with random weights and completions of one length; exact reverse KL in the first three,
of which the teacher's passes are a part of the training, and by sampled tokens with vLLM:

    1 process, 2 processes       the transformers engine samples in the processes that train, one thread each
    TRL, 2 processes             its DistillationTrainer on the same prompts, one thread each
    vLLM, max_staleness 0        a server that the run starts samples a batch, then the student is trained on it
    vLLM, max_staleness 1        it goes on sampling meanwhile

Claims
    losses     of the first step are those of one process to 1e-4.
    overlap    where the trainer waits for 40 % of its time or more with 0, it waits for less than 10 % with 1, or the
               sampler does: the slower of both is never idle.
    processes  two are at least as fast as TRL's.

Learnt
    On two slow cores, shape small, completions of 115 tokens, one round: 1 process 11.7 s a step, 2 processes 9.2 s
    (1.28 times the tokens a second), TRL 1.16 in 2 processes 10.9 s (we have 1.18 times its tokens a second; all three
    sample in some 45 % of the step). vLLM: 12.1 s a step with 0, of which the trainer waits 45 % for samples, and 8.0 s
    with 1 (1.51 times), of which it waits 4 %; the teacher in its process then scores in 51 % of the time.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.frame.peers import trl_folder
from benchmarks.frame.rounds import argument_parser, publish
from benchmarks.frame.training import run_side
from benchmarks.on_policy.sides.job import OnPolicyJob, OnPolicyRecord, num_sampled
from benchmarks.on_policy.workload import PAIRS, Lengths, write_workload
from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig
from stillhouse.progress.state import NoProgress
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train
from stillhouse.types import Prompt

_NUM_STEPS: Final = 8
_WARM_UP: Final = 2
_BATCH_SIZE: Final = 16
_MAX_TOKENS: Final = Lengths().mean_completion
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
    teacher_idle: float
    """Share of the time in which nothing is scored apart from the training."""
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
    scoring = sum(row["score_s"] for row in timed)
    # A teacher in its process is no wait.
    waiting = sum(row["trainer_wait_s"] for row in timed) - scoring if job.runtime.engine == "vllm" else 0.0
    idle = sum(row.get("sampler_idle_share", 1 - row["sample_s"] / row["step_s"]) * row["step_s"] for row in timed)
    tokens = facts["sampled_tokens"] * len(timed) / len(rows)
    shares = (waiting / seconds, idle / seconds, 1 - scoring / seconds)
    return Split(seconds / len(timed), tokens / seconds, *shares, rows[0]["loss"])


def measured_trl(folder: Path, trl: Path, num_processes: int) -> Split:
    """Train by TRL on the workload in `folder`, and read the split of the steps from its first process."""
    job = OnPolicyJob(
        folder=str(folder),
        scratch=str(folder / "trl"),
        num_steps=_NUM_STEPS,
        batch_size=_BATCH_SIZE,
        precision="float32",
        num_threads=1,
    )
    record = run_side("benchmarks.on_policy.sides.trl", job, OnPolicyRecord, trl, num_processes)
    timed = [{**split, "step": sum(split.values())} for split in record.splits()][_WARM_UP - 1 :]
    seconds = {name: sum(split[name] for split in timed) for name in timed[0]}
    tokens = num_processes * sum(map(num_sampled, record.trajectories[_WARM_UP:]))
    sampling, scoring = seconds["sample"] / seconds["step"], seconds["score"] / seconds["step"]
    speed = seconds["step"] / len(timed), tokens / seconds["step"]
    return Split(*speed, 0.0, 1 - sampling, 1 - scoring, record.losses[0])


def new_job(folder: Path, name: str, runtime: Mapping[str, Any], **on_policy: Any) -> TrainJob:
    """A job on the workload in `folder`."""
    settings = {
        "algorithm": "divergence",
        "num_steps": _NUM_STEPS,
        "prompts_per_step": _BATCH_SIZE,
        "max_tokens": _MAX_TOKENS,
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
    parser.add_argument("--peer", type=Path, default=Path("runs/bench/venvs/trl"), metavar="FOLDER", help="of TRL")
    chosen = parser.parse_args()
    trl = trl_folder(chosen.peer.absolute())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_workload(folder, PAIRS[chosen.shape], _NUM_STEPS * _BATCH_SIZE, equal=True)
        rows = map(json.loads, (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines())
        write_jsonl(folder / "prompts.jsonl", [Prompt(row["id"], row["messages"], tools=[]) for row in rows])
        together = {"launcher": "torchrun", "num_processes": 2}
        sides: dict[str, Callable[[], Split]] = {
            "1 process": partial(measured, new_job(folder, "1", {})),
            "2 processes": partial(measured, new_job(folder, "2", together)),
            "TRL, 2 processes": partial(measured_trl, folder, trl, 2),
        }
        if chosen.vllm:
            served = {"engine": "vllm", "vllm_python": chosen.vllm}
            for n in (0, 1):
                job = new_job(folder, f"v{n}", served, max_staleness=n, algorithm="sampled_kl")
                sides[f"vLLM, max_staleness {n}"] = partial(measured, job)
        splits: dict[str, Split] = {}
        for name, side in sides.items():
            splits[name] = split = side()
            print(
                f"{name:24} {split.s_per_step:7.2f} s a step  {split.tokens_per_s:7.0f} tokens/s  idle: trainer "
                f"{split.trainer_idle:4.0%}, sampler {split.sampler_idle:4.0%}, teacher {split.teacher_idle:4.0%}",
                flush=True,
            )
    failures = _failures(splits)
    publish(failures or ["claims hold"], {name: asdict(split) for name, split in splits.items()}, chosen.json)
    return int(bool(failures))


def _failures(splits: Mapping[str, Split]) -> list[str]:
    first = splits["1 process"].first_loss
    failures = []
    if splits["2 processes"].tokens_per_s < splits["TRL, 2 processes"].tokens_per_s:
        failures.append("two processes are slower than TRL's")
    if not abs(splits["2 processes"].first_loss - first) <= 1e-4 * abs(first):
        failures.append(f"losses differ: {first} and {splits['2 processes'].first_loss}")
    if "vLLM, max_staleness 1" in splits:
        overlapped = splits["vLLM, max_staleness 1"]
        if min(overlapped.trainer_idle, overlapped.sampler_idle) > _IDLE:
            failures.append("both trainer and sampler wait with max_staleness 1")
    return failures


if __name__ == "__main__":
    sys.exit(main())
