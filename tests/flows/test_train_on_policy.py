"""On-policy distillation by itself, in every mode that has an example."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from stillhouse.config import DistillConfig, load_config
from stillhouse.tracking.client import default_uri
from tasks.publish import Published

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs" / "on_policy").glob("*.yaml"))
FAST = {"exact", "grpo", "mixed_agentic", "pure"}
SHORT = {
    "prompts.max_prompts": 16,
    "on_policy.num_steps": 2,
    "on_policy.prompts_per_step": 4,
    "on_policy.max_tokens": 16,
    "on_policy.max_turns": 2,
    "on_policy.trainer.log_every_steps": 1,
    "runtime.launcher": "inline",
}


def shortened(path: Path, store: Path, **changes: Any) -> DistillConfig:
    values = {**SHORT, "runtime.store": str(store), **changes}
    return load_config(path, [f"{key}={json.dumps(value)}" for key, value in values.items()])


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=() if path.stem in FAST else pytest.mark.slow) for path in CONFIGS],
)
def test_every_mode_trains(path: Path, tmp_path: Path) -> None:
    from flows.train_on_policy import train_on_policy

    config = shortened(path, tmp_path, **{"tracking.enabled": False})
    student = train_on_policy(config).students["on_policy"]
    final = student.facts["final"]
    assert student.facts["steps"] == 2
    assert all(math.isfinite(value) for value in final.values())
    assert ("on_policy/teacher_kl" in final) is config.on_policy.needs_teacher
    # Rewards alone teach nothing where all answers of a prompt are cut off.
    assert final["on_policy/grad_norm"] > 0.0 or not config.on_policy.needs_teacher
    assert final["on_policy/mean_turns"] <= 2.0


def test_mlflow_has_the_metrics_and_a_file_of_trajectories(tmp_path: Path) -> None:
    from flows.train_on_policy import train_on_policy

    path = next(path for path in CONFIGS if path.stem == "pure_agentic")
    student = train_on_policy(shortened(path, tmp_path)).students["on_policy"]
    client = MlflowClient(default_uri(tmp_path))
    run = client.get_run(student.facts["mlflow_run_id"])
    assert {"on_policy/teacher_kl/teacher", "on_policy/reward", "on_policy/details/sample_s"} <= run.data.metrics.keys()
    names = [entry.path for entry in client.list_artifacts(run.info.run_id, "trajectories")]
    assert names == ["trajectories/step-00000000.jsonl"]


@pytest.mark.slow
def test_a_training_with_another_rate_on_recorded_rollouts_samples_and_scores_nothing_anew(
    tmp_path: Path, smoke_config
) -> None:
    from flows.train_on_policy import train_on_policy

    def train(rate: float) -> Published:
        settings = {"on_policy__source": "rollouts", "on_policy__learning_rate": rate, "on_policy__num_steps": 2}
        return train_on_policy(smoke_config(tmp_path / "store", **settings))

    assert train(1e-3).cached == {"prompts": False, "student_rollouts": False, "on_policy": False}
    again = train(2e-3)
    assert again.cached == {"prompts": True, "student_rollouts": True, "on_policy": False}
    assert "16 sampled" in next(row for row in again.summary if row[0] == "student_rollouts")[-1]
