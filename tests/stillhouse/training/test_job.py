import shutil
from pathlib import Path
from typing import Any

import pytest

from stillhouse.agent.turns import TurnRules
from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig, ToolsConfig, TrainerConfig, load_config
from stillhouse.store import digest
from stillhouse.training.job import TrackingTarget, TrainJob
from tests.stillhouse.training.sections import on_policy_of

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


@pytest.fixture
def job(new_on_policy_job, tmp_path: Path) -> TrainJob:
    tools = tmp_path / "tools.py"
    tools.write_text("# no tool yet\n")
    return new_on_policy_job(tmp_path, {}, student=StudentConfig(), tools=ToolsConfig(file=str(tools)))


@pytest.mark.parametrize(
    "change",
    [
        {"runtime": RuntimeConfig(num_threads=7)},
        {"tracking": TrackingTarget(uri="sqlite:///x.db", run_id="r")},
        {"metadata_file": Path("answers.jsonl")},
        {"on_policy": OnPolicyConfig(trainer=TrainerConfig(checkpoint_every_steps=7, log_every_steps=3))},
        {"output_dir": Path("elsewhere")},
    ],
)
def test_what_does_not_change_the_weights_does_not_change_the_digest(job: TrainJob, change: dict[str, Any]):
    assert job.model_copy(update=change).digest() == job.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"on_policy": OnPolicyConfig(trainer=TrainerConfig(seed=1))},
        {"student": StudentConfig(lora_rank=8)},
        {"student_ref": "embedded:teacher"},
        {"system_prompt": "Be brief."},
        {"tools": ToolsConfig()},
        {"rules": TurnRules(closing_answer=True)},
    ],
)
def test_what_changes_the_weights_changes_the_digest(job: TrainJob, change: dict[str, Any]):
    assert job.model_copy(update=change).digest() != job.digest()


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("demo", "sft", "5704d7e7"),
        ("demo", "on_policy", "244e5131"),
        ("on_policy/several_teachers", "on_policy", "c810215e"),
    ],
)
def test_what_a_training_is_known_by_stays(job: TrainJob, dataset_folder: Path, name: str, method: str, expected: str):
    section = getattr(load_config(CONFIGS / f"{name}.yaml"), method)
    fields = {"method": method, "on_policy": None, "dataset_folder": dataset_folder, method: section}
    assert digest(job.model_copy(update=fields).identity()[method])[:8] == expected


def test_the_template_that_renders_for_a_served_teacher_is_part_of_the_identity(
    job: TrainJob, tiny_model: str, tmp_path: Path
):
    folder = shutil.copytree(tiny_model, tmp_path / "teacher")
    far = {"name": "far", "kind": "vllm", "model": str(folder), "base_url": "http://127.0.0.1:9/v1"}

    def digests() -> list[str]:
        configs = [on_policy_of({"teachers": [{**far, **own}]}) for own in ({}, {"template": "own"})]
        return [job.model_copy(update={"on_policy": config}).digest() for config in configs]

    by_students, by_own = digests()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert digests()[0] == by_students != by_own
    assert digests()[1] != by_own


def test_another_version_of_a_tool_is_another_training(job: TrainJob):
    before = job.digest()
    assert job.tools.file is not None
    Path(job.tools.file).write_text("# another\n")
    assert job.digest() != before


def test_job_survives_its_file(job: TrainJob):
    assert TrainJob.model_validate_json(job.model_dump_json()) == job
