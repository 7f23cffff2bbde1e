"""Whole trainings whose rollouts are sampled and scored elsewhere."""

from collections.abc import Callable
from pathlib import Path

from stillhouse.agent.turns import TurnRules
from stillhouse.config import StudentConfig
from stillhouse.progress.state import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.on_policy.monitoring.shown_trajectories import SHOWN_FOLDER
from stillhouse.training.run_job import run_job
from tests.stillhouse.training.trainings import read_metrics


def test_servers_sample_ahead_and_score_while_the_student_trains(
    serve: Callable[[str, str], str], new_on_policy_job: Callable[..., TrainJob], tmp_path: Path
) -> None:
    teacher = {"name": "big", "kind": "vllm", "model": "teacher", "base_url": serve("embedded:teacher", "teacher")}
    sizes = {"num_steps": 4, "prompts_per_step": 4, "max_tokens": 24, "max_turns": 3}
    engine = {"engine_url": serve("embedded:student", "student"), "max_staleness": 1}
    settings = {**sizes, **engine, "learning_rate": 1e-3, "log_every_steps": 1, "teachers": [teacher]}
    job = new_on_policy_job(
        tmp_path,
        settings,
        student=StudentConfig(parameters="lora", lora_rank=4, dtype="float32", max_length=512),
        rules=TurnRules(response_schema={"type": "object"}, max_corrections=1),
        teacher_ref=None,
    )
    run_job(job, NoProgress())
    rows = [row["metrics"] for row in read_metrics(tmp_path / "work" / "metrics.jsonl")]
    assert [row["on_policy/staleness"] for row in rows] == [0.0, 1.0, 1.0, 1.0]
    assert rows[0]["on_policy/log_ratio_abs_max"] < 1e-3
    assert all(row["on_policy/teacher_kl/big"] > 0.1 for row in rows)
    assert (tmp_path / "student" / "adapter_model.safetensors").exists()
    shown = "".join(file.read_text() for file in (tmp_path / "work" / SHOWN_FOLDER).glob("*.jsonl"))
    assert "does not meet the required JSON schema" in shown, "the job's rules reach the sampler"
