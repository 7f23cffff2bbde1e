"""Keys of assets; tests/flows/test_distill.py has the events, on a real server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import DistillConfig
from stillhouse.tracking.tracked_run import TrackedRun
from stillhouse.types import Artifact
from tasks.assets import asset_of
from tasks.dataset import DATASET
from tasks.run.context import Run


@pytest.mark.parametrize(
    ("experiment", "name", "key"),
    [
        ("assistant", "dataset", "stillhouse://assistant/dataset"),
        ("assistant", "evaluation of sft", "stillhouse://assistant/evaluation-of-sft"),
        (
            "/Users/ann@team.example/100% [new]",
            "own labels",
            "stillhouse://-Users-ann@team.example-100---new-/own-labels",
        ),
        ("x" * 500, "dataset", f"stillhouse://{'x' * 200}/dataset"),
    ],
)
def test_the_key_of_an_asset_is_one_that_prefect_takes_whatever_the_experiment_is_called(
    experiment: str, name: str, key: str, make_context: Callable[..., Any], tmp_path: Path
) -> None:
    config = DistillConfig.model_validate({"tracking": {"experiment": experiment, "enabled": False}})
    run = Run("distill", config, make_context(), TrackedRun(None, None, "distill", tmp_path))
    made = Artifact(uri=str(tmp_path), fingerprint="f", num_rows=1)
    run.record_stage(DATASET, made, cached=True, seconds=0.0, label=name)
    assert asset_of(run.stages[0], run).key == key
