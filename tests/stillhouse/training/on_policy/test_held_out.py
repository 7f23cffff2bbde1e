import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import RuntimeConfig, StudentConfig, ToolsConfig
from stillhouse.errors import InputError
from stillhouse.progress.state import NoProgress
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.monitoring.metrics import read_metrics
from stillhouse.training.run_job import run_job
from stillhouse.types import Prompt, PromptMetadata
from tests.stillhouse.training.sections import on_policy_of

NewJob = Callable[..., TrainJob]

_SHORT = {"num_steps": 3, "prompts_per_step": 4, "max_tokens": 12, "max_turns": 2, "learning_rate": 1e-3}
_REWARDS = '''
from stillhouse.tools import RewardArgs, reward


@reward
def brief(args: RewardArgs, messages: list) -> float:
    """Right in any case."""
    return 0.25
'''


@pytest.fixture
def new_job(
    prompts: list[Prompt],
    metadata: dict[str, PromptMetadata],
    prompts_file: Path,
    metadata_file: Path,
    full_student: StudentConfig,
    calculator: ToolsConfig,
    runtime: RuntimeConfig,
    tmp_path: Path,
) -> NewJob:
    """Trains on the first twelve prompts and holds out four."""
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "held_out", "held_out_metadata")}
    write_jsonl(files["train"], prompts[:12])
    write_jsonl(files["held_out"], prompts[12:])
    write_jsonl(files["held_out_metadata"], [metadata[prompt.id] for prompt in prompts[12:]])

    def make(name: str, *, tools: ToolsConfig = calculator, **settings: Any) -> TrainJob:
        return TrainJob(
            method="on_policy",
            student_ref="embedded:student",
            student=full_student,
            on_policy=on_policy_of(_SHORT | settings),
            prompts_file=files["train"],
            metadata_file=metadata_file,
            held_out_file=files["held_out"],
            held_out_metadata_file=files["held_out_metadata"],
            teacher_ref="embedded:teacher",
            tools=tools,
            work_dir=tmp_path / name / "work",
            output_dir=tmp_path / name / "student",
            runtime=runtime,
        )

    return make


def test_held_out_prompts_are_measured_on_the_way_and_change_no_bit_of_the_student(
    new_job: NewJob, prompts: list[Prompt], tmp_path: Path
) -> None:
    (tmp_path / "rewards.py").write_text(_REWARDS)
    tools = ToolsConfig(builtin=("calculator",), rewards_file=str(tmp_path / "rewards.py"))
    plain = new_job("plain", tools=tools)
    measured = new_job("measured", tools=tools, generate_every_steps=2, num_generations=2)
    for job in (plain, measured):
        run_job(job, NoProgress())
    rows = {row["step"]: row["metrics"] for row in read_metrics(measured.work_dir / "metrics.jsonl")}
    steps = [step for step, metrics in rows.items() if "on_policy/generation_accuracy" in metrics]
    assert steps == [0, 2, 3]
    assert {rows[step]["on_policy/generation_reward"] for step in steps} == {0.25}
    assert all(rows[step]["on_policy/generation_mean_tokens"] > 0 for step in steps)
    answers = [json.loads(line) for line in (measured.work_dir / "generations.jsonl").read_text().splitlines()]
    assert [answer["prompt_id"] for answer in answers] == [prompts[12].id, prompts[14].id] * 3
    weights = [(job.output_dir / "model.safetensors").read_bytes() for job in (plain, measured)]
    assert weights[0] == weights[1]
    assert plain.digest() == measured.digest()


def test_nothing_held_out_is_refused(new_job: NewJob) -> None:
    job = new_job("none", generate_every_steps=2)
    assert job.held_out_file is not None
    job.held_out_file.write_text("")
    with pytest.raises(InputError, match="generate_every_steps = 2"):
        run_job(job, NoProgress())
    with pytest.raises(ValueError, match="held_out_file"):
        TrainJob.model_validate(job.model_dump() | {"held_out_file": None})
