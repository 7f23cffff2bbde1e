"""The examination of the pair before an on-policy training that may take more than minutes."""

from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import load_config
from stillhouse.errors import TrainingError
from tasks.models import base_student
from tasks.pair.stage import check_pair

ROOT = Path(__file__).resolve().parents[2]
COSTLY = {"on_policy.num_steps": 100_000, "prompts.max_prompts": 80, "tracking.enabled": False}
CHECKS = ("auto", "off")
SWAPPED = {"student.model": "embedded:teacher", "teacher.model": "embedded:student"}


def config_with(store: Path, **changes: Any):
    values = {**COSTLY, "runtime.store": store, "runtime.device": "cpu", "prompts.held_out_fraction": 0.4, **changes}
    return load_config(
        ROOT / "configs/on_policy/pure_agentic.yaml", [f"{key}={value}" for key, value in values.items()]
    )


def test_a_pair_that_does_not_fit_is_not_trained(tmp_path: Path) -> None:
    from flows.train_on_policy import train_on_policy

    with pytest.raises(TrainingError, match=r"teacher: better:.*on_policy\.pair_check"):
        train_on_policy(config_with(tmp_path, **SWAPPED))


def test_a_cheap_training_or_one_that_says_so_is_not_examined(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{"on_policy.num_steps": 4}, {"on_policy.pair_check": "off"}]
    for change in changes:
        config = config_with(tmp_path, **{**SWAPPED, **change})
        # Neither prompts nor a run are looked at.
        check_pair(base_student(config.student), None, config, None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_student_is_not_trained_again_for_another_check_of_its_pair(tmp_path: Path) -> None:
    from flows.train_on_policy import train_on_policy

    little = {"on_policy.num_steps": 1, "on_policy.prompts_per_step": 2, "evaluation.enabled": False}
    runs = [train_on_policy(config_with(tmp_path, **little, **{"on_policy.pair_check": check})) for check in CHECKS]
    assert [run.cached["on_policy"] for run in runs] == [False, True]
