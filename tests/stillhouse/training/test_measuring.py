import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import InputError
from stillhouse.progress.state import NoProgress
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.run_job import run_job
from stillhouse.types import Prompt, PromptMetadata
from tests.stillhouse.training.trainings import logged

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
    new_on_policy_job: NewJob, prompts: list[Prompt], metadata: dict[str, PromptMetadata], tmp_path: Path
) -> NewJob:
    """Trains on the first twelve prompts and holds out four."""
    rewards = tmp_path / "rewards.py"
    rewards.write_text(_REWARDS)
    fields = {"tools": ToolsConfig(builtin=("calculator",), rewards_file=str(rewards))}
    held_out = [metadata[prompt.id] for prompt in prompts[12:]]
    for name, rows in {"prompts": prompts[:12], "held_out": prompts[12:], "held_out_metadata": held_out}.items():
        fields[f"{name}_file"] = tmp_path / f"{name}.jsonl"
        write_jsonl(fields[f"{name}_file"], rows)
    return lambda name, **settings: new_on_policy_job(tmp_path / name, _SHORT | settings, **fields)


def test_held_out_prompts_are_measured_on_the_way_and_change_no_bit_of_the_student(
    new_job: NewJob, prompts: list[Prompt]
) -> None:
    plain = new_job("plain")
    measured = new_job("measured", generate_every_steps=2, num_generations=2)
    for job in (plain, measured):
        run_job(job, NoProgress())
    assert list(logged(measured, "on_policy/generation_accuracy")) == [0, 2, 3]
    assert logged(measured, "on_policy/generation_reward") == dict.fromkeys((0, 2, 3), 0.25)
    assert min(logged(measured, "on_policy/generation_mean_tokens").values()) > 0
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
