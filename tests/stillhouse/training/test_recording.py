"""Training on rollouts that were sampled and scored before it, against training on samples as they come."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stillhouse.errors import StoreError
from stillhouse.progress.state import Fact, NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.on_policy.batches.recorded import FACTS_FILE
from stillhouse.training.results.record import StudentRecord
from stillhouse.training.run_job import run_job
from stillhouse.types import JsonObject
from tests.stillhouse.training.trainings import logged

NewJob = Callable[..., TrainJob]
SMALL = {"prompts_per_step": 4, "num_steps": 1, "max_tokens": 24, "max_turns": 3, "learning_rate": 1e-3}
SMALL |= {"log_every_steps": 1, "checkpoint_every_steps": 100}


@pytest.fixture
def new_job(new_on_policy_job: NewJob, tmp_path: Path) -> NewJob:
    def make(method: str, name: str, *, rollouts: Path | None = None, ref: str = "embedded:student", **changes: Any):
        fields = {"method": method, "student_ref": ref, "rollouts_folder": rollouts}
        fields |= {"teacher_ref": None} if "teachers" in changes else {}
        return new_on_policy_job(tmp_path / name, SMALL | changes, **fields)

    return make


def recorded(new_job: NewJob, **settings: Any) -> tuple[Path, JsonObject]:
    job = new_job("student_rollouts", "recorded", source="rollouts", **settings)
    return job.output_dir, run_job(job, NoProgress())


def trained(job: TrainJob) -> dict[str, torch.Tensor]:
    run_job(job, NoProgress())
    return load_file(job.output_dir / "model.safetensors")


def metrics(job: TrainJob, name: str) -> list[float]:
    return list(logged(job, f"on_policy/{name}").values())


@pytest.mark.parametrize(
    "settings",
    [{}, {"reward_coef": 1.0, "group_size": 2, "num_substeps": 2, "num_steps": 2}],
    ids=["teacher alone", "with rewards"],
)
def test_the_first_batch_trains_to_the_bits_of_one_sampled_in_training(new_job: NewJob, settings: dict[str, Any]):
    online = trained(new_job("on_policy", "online", **settings))
    folder, facts = recorded(new_job, **settings)
    offline = trained(new_job("on_policy", "offline", source="rollouts", rollouts=folder, **settings))
    assert facts["batches"] == 1
    assert all(torch.equal(offline[name], online[name]) for name in online)


def test_later_batches_are_of_the_student_before_the_training_which_the_ratio_corrects(new_job: NewJob):
    folder, facts = recorded(new_job, num_steps=6)
    assert facts["batches"] == 4, "one pass over 16 prompts, four a batch"
    job = new_job("on_policy", "offline", source="rollouts", rollouts=folder, num_steps=6)
    trained(job)
    assert metrics(job, "staleness") == [0, 1, 2, 3, 4, 5]
    drift = [abs(value) for value in metrics(job, "log_ratio_mean")]
    assert drift[0] < 1e-4 < drift[-1]
    # The fifth batch is the first again: what was learnt of it shows.
    kls = metrics(job, "teacher_kl")
    assert kls[4] < kls[0]


def test_a_training_on_recorded_rollouts_loads_no_teacher(new_job: NewJob, caplog: pytest.LogCaptureFixture):
    far = {"name": "far", "model": "embedded:teacher", "kl_coef": 0.5}
    folder, facts = recorded(new_job, teachers=[far])
    assert facts["teachers"] == {"far": 0.5}
    gone = {**far, "kind": "vllm", "base_url": "http://127.0.0.1:9/v1"}
    trained(new_job("on_policy", "offline", source="rollouts", rollouts=folder, teachers=[gone]))


@pytest.mark.parametrize(
    ("kind", "template", "top_k", "tolerance"),
    [("forward_kl", "student", 50, 1e-3), ("jsd", "student", 50, 1e-3), ("jsd", "own", 100, 5e-3)],
)
def test_recorded_best_tokens_give_nearly_the_divergence_of_the_whole_distribution(
    new_job: NewJob, colon_student: str, kind: str, template: str, top_k: int, tolerance: float
):
    teacher = {"name": "near", "model": "embedded:teacher", "template": template}
    settings = {"divergence": [{"kind": kind}], "max_tokens": 64}
    settings |= {"ref": colon_student} if template == "own" else {}
    online = new_job("on_policy", "online", teachers=[teacher], **settings)
    trained(online)
    settings["teachers"] = [{**teacher, "top_k": top_k}]
    folder, _ = recorded(new_job, **settings)
    offline = new_job("on_policy", "offline", source="rollouts", rollouts=folder, **settings)
    trained(offline)
    assert metrics(offline, "divergence") == pytest.approx(metrics(online, "divergence"), rel=tolerance)


class Stopped(Exception):
    pass


def test_batches_that_were_recorded_are_not_sampled_again(new_job: NewJob):
    class Stop(NoProgress):
        def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
            if (done, total) == (2, 4):
                raise Stopped

    job = new_job("student_rollouts", "recorded", source="rollouts", num_steps=4)
    with pytest.raises(Stopped):
        run_job(job, Stop())
    files = {path: path.stat().st_mtime_ns for path in (job.work_dir / "rollouts").glob("batch-*.parquet")}
    assert len(files) == 2
    run_job(job, NoProgress())
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert len(list(job.output_dir.glob("*.parquet"))) == 4


def test_a_damaged_recording_says_how_to_make_it_again(new_job: NewJob):
    folder, _ = recorded(new_job)
    (folder / FACTS_FILE).write_text("{")
    with pytest.raises(StoreError, match=r"recorded\.json.*\[student_rollouts\]"):
        trained(new_job("on_policy", "offline", source="rollouts", rollouts=folder))


@pytest.mark.parametrize(("wrote", "is_warned"), [("Qwen/Qwen3-32B", True), ("org/embedded:Teacher", False)])
def test_another_teacher_than_that_of_sft_is_warned_of(
    new_job: NewJob, tmp_path: Path, caplog: pytest.LogCaptureFixture, wrote: str, is_warned: bool
):
    first = new_job("on_policy", "start")
    trained(first)
    StudentRecord(
        method="sft", base="embedded:student", started_from="embedded:student", config={}, facts={}, teachers=(wrote,)
    ).write(first.output_dir)
    with caplog.at_level(logging.WARNING):
        recorded(new_job, ref=str(first.output_dir))
    assert ("was fine-tuned on rows of Qwen/Qwen3-32B" in caplog.text) == is_warned
