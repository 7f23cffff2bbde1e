"""Three steps of every shipped on-policy config on the embedded models, against the numbers of a verified version.

A change of how a method is written must leave them as they are; a change of what it computes records them anew, with
`RECORD=1 pytest tests/stillhouse/training/on_policy/algorithms/test_recorded_losses.py`.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from stillhouse.config.load import load_config
from stillhouse.training.job import TrainJob
from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.model.load import load_student
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.on_policy.load import load_on_policy

_RECORDED = Path(__file__).with_name("recorded_losses.json")
_FOLDER = Path("configs/on_policy").resolve()
_SMALL = {"num_steps": 3, "prompts_per_step": 4, "max_tokens": 64, "max_turns": 5, "log_every_steps": 1}
_MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "truncated": ("pure", {"correction": "truncate"}),
    "exact_and_reward": ("exact", {"reward_coef": 1.0, "group_size": 4, "adv_estimator": "rloo", "num_passes": 2}),
}
_NAMES = ("loss", "grad_norm", "teacher_kl", "sampled_advantage", "sampled_advantage_std", "reward")


class Rows(NoListener):
    """Keeps the figures of each step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        bare = {name.replace("/details/", "/"): value for name, value in metrics.items()}
        row = {name: bare[f"on_policy/{name}"] for name in _NAMES if f"on_policy/{name}" in bare}
        if "loss" in row:
            self.rows.append(row)


def _cases() -> dict[str, tuple[str, dict[str, Any]]]:
    return {path.stem: (path.stem, {}) for path in sorted(_FOLDER.glob("*.yaml"))} | _MORE


@pytest.mark.slow
@pytest.mark.parametrize("name", _cases())
def test_a_shipped_config_gives_the_recorded_losses(
    name: str, new_on_policy_job: Callable[..., TrainJob], tmp_path: Path
) -> None:
    base, settings = _cases()[name]
    config = load_config(_FOLDER / f"{base}.yaml")
    by_name = config.on_policy.model_dump(exclude={"algorithm"})
    by_name |= by_name.pop("trainer") | _SMALL | settings
    if base == "several_teachers":
        # The prompts of the test have one tag.
        by_name["teachers"][0]["routes"] = ["shop"]
    by_name["group_size"] = min(by_name["group_size"], 4)
    job = new_on_policy_job(tmp_path, by_name, student=config.student, tools=config.tools)
    rows = Rows()
    torch.manual_seed(0)
    with ExitStack() as resources:
        student = load_student(job.student_ref, job.student, torch.device("cpu"), seed=0)
        method = load_on_policy(job, student, rows, nullcontext, resources)
        assert job.on_policy is not None
        build_trainer(
            method, student, job.on_policy, work_dir=tmp_path, identity={}, listener=rows, peak_tflops=1.0
        ).run()
    recorded = json.loads(_RECORDED.read_text()) if _RECORDED.exists() else {}
    if "RECORD" in os.environ:
        _RECORDED.write_text(json.dumps(recorded | {name: rows.rows}, indent=1) + "\n")
        return
    assert len(rows.rows) == 3
    for row, expected in zip(rows.rows, recorded[name], strict=True):
        # Bit for bit on the machine that recorded them; another processor adds in another order.
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-6)
