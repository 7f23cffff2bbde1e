"""Which models are asked suites, and what is told before a run spends anything."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import DistillConfig, parse_config
from stillhouse.errors import ConfigError
from stillhouse.store import ArtifactStore
from stillhouse.types import Artifact
from tasks.governance.comparison import COMPARISON_STAGES
from tasks.models import teacher_model
from tasks.run.context import start_flow
from tasks.suites import SUITE, measure_on_suites, suite_scores

SUITES = ["examples/suites/stock.py:stock"]


@pytest.fixture
def config_with(tmp_path: Path) -> Callable[..., DistillConfig]:
    def make(**sections: Any) -> DistillConfig:
        common = {"tracking": {"enabled": False}, "runtime": {"store": str(tmp_path)}}
        return parse_config({**common, **sections}, "config.yaml")

    return make


@pytest.mark.skipif(find_spec("inspect_ai") is not None, reason="inspect_ai is installed")
def test_a_run_ends_before_its_first_stage_where_inspect_ai_is_missing(config_with) -> None:
    config = config_with(evaluation={"suites": SUITES})
    with pytest.raises(ConfigError, match="stock needs the package inspect_ai: pip install inspect_ai"):
        start_flow(config, "evaluate-models", COMPARISON_STAGES)
    assert start_flow(config, "generate", ()).plan == (), "which measures nothing"


def test_a_teacher_that_somebody_else_serves_is_not_asked(config_with) -> None:
    run = start_flow(config_with(), "evaluate-models", COMPARISON_STAGES)
    run.config = config_with(
        teacher={"model": "large", "base_url": "https://seller.example/v1"},
        evaluation={"suites": SUITES},
        on_policy={"enabled": False},
    )
    assert measure_on_suites(teacher_model(run.config.teacher), run) == []


def test_a_flow_goes_through_suites_only_where_there_are_some(config_with) -> None:
    assert not SUITE.when(config_with())
    assert SUITE.when(config_with(evaluation={"suites": SUITES}))


def test_scores_are_compared_by_suite_and_sample(tmp_path: Path) -> None:
    rows = [{"id": "1", "score": 1.0}, {"id": "2", "score": 0.5}]
    result: Artifact = ArtifactStore(tmp_path).write_rows("suite", "0" * 16, "scores.jsonl", rows, {"suite": "stock"})
    assert suite_scores([result]) == {"suite stock": {"1": 1.0, "2": 0.5}}
