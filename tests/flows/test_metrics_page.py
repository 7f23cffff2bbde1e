"""A run logs the metrics of the guide's page."""

import json
import re
from pathlib import Path

import pytest
from mlflow import MlflowClient

from stillhouse.config import load_config
from stillhouse.project import create_project
from stillhouse.tracking.client import default_uri

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
PREFIXES = ("base", "sft", "on_policy", "teacher", "champion", "dataset", "rollouts", "evaluate base")
TINY = {
    "prompts.max_prompts": 16,
    "sft.num_epochs": 1,
    "sft.trainer.log_every_steps": 1,
    "sft.trainer.checkpoint_every_steps": 1,
    "sft.trainer.generate_every_steps": 1,
    "dataset.validation_fraction": 0.2,
    "on_policy.num_steps": 1,
    "on_policy.prompts_per_step": 2,
    "on_policy.trainer.log_every_steps": 1,
    "on_policy.trainer.generate_every_steps": 1,
    "on_policy.trainer.num_generations": 2,
    "evaluation.max_prompts": 2,
    "runtime.launcher": "inline",
}


@pytest.mark.slow
def test_every_metric_that_a_run_logs_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.distill import distill

    create_project(tmp_path, "on-policy")
    monkeypatch.chdir(tmp_path)
    overrides = [f"{key}={json.dumps(value)}" for key, value in TINY.items()]
    published = distill(load_config(Path("config.yaml"), overrides))
    assert list(published.students) == ["sft", "on_policy"]
    final = published.students["on_policy"].facts["final"]
    assert {"on_policy/reward/right", "on_policy/reward/sparing", "on_policy/teacher_kl"} <= final.keys()
    client = MlflowClient(default_uri(tmp_path / "runs"))
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    logged = {name for run in runs for name in run.data.metrics}
    assert {"on_policy/generation_accuracy", "on_policy/generation_reward"} <= logged
    assert {"on_policy/teacher_kl", "sft/validation_loss", "rollouts/done", "base/accuracy"} <= logged
    page = known_names()
    assert not sorted(name for name in logged if not is_known(name, page))


def known_names() -> list[re.Pattern[str]]:
    cells = re.findall(r"^\| (`[^|]+) \|", PAGE.read_text(encoding="utf-8"), re.M)
    names = [name for cell in cells for name in re.findall(r"`([\w/]+)`", cell)]
    return [re.compile(name.replace("NAME", r"[^/]+")) for name in names]


def is_known(name: str, page: list[re.Pattern[str]]) -> bool:
    prefix, _, rest = name.partition("/")
    if prefix == "system":
        return True  # MLflow's own
    spellings = (rest.removeprefix("details/") if prefix in PREFIXES else name, f"comparison/{name}")
    return any(pattern.fullmatch(one) for pattern in page for one in spellings)
