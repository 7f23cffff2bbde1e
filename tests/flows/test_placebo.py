"""Placebos in the whole DAG: trained, measured, compared with, told of, and kept."""

from pathlib import Path
from typing import NamedTuple

import pytest

from stillhouse.config import DistillConfig
from stillhouse.errors import ConfigError
from tasks.publish import Published

pytestmark = pytest.mark.slow
ARMS = ["placebo_shuffled", "placebo_constant"]


class Runs(NamedTuple):
    store: Path
    config: DistillConfig
    first: Published
    second: Published


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, smoke_config) -> Runs:
    from flows.distill import distill

    store = tmp_path_factory.mktemp("placebo") / "store"

    def config(**changes: object) -> DistillConfig:
        return smoke_config(
            store,
            sft__enabled=False,
            on_policy__num_steps=2,
            tracking__register_as="small",
            promotion__enabled=True,
            promotion__min_prompts=1,
            promotion__placebo__enabled=True,
            **changes,
        )

    return Runs(store, config(), distill(config()), distill(config(promotion__placebo__level=0.2)))


def test_placebos_are_trained_measured_and_not_registered(runs: Runs) -> None:
    from mlflow import MlflowClient

    assert [stage for stage in runs.first.cached if stage.startswith("placebo")] == ARMS
    assert list(runs.first.evaluations) == ["base", "on_policy", *ARMS, "teacher"]
    assert list(runs.first.students) == ["on_policy"]
    assert [row[-1] for row in runs.first.summary if row[0] in ARMS] == ["1 step", "1 step"]
    client = MlflowClient(f"sqlite:///{runs.store / 'mlflow.db'}")
    assert {version.version for version in client.search_model_versions("name='small'")} <= {1, 2}


def test_the_decision_says_what_each_placebo_reached(runs: Runs) -> None:
    from mlflow import MlflowClient

    assert runs.first.promotion is not None
    assert "the placebo with shuffled scores: accuracy " in runs.first.promotion
    assert "the placebo with a constant advantage: accuracy " in runs.first.promotion
    # The reference is what it started from, and is compared with once.
    assert "which it started from" not in runs.first.promotion
    page = Path(runs.first.report).read_text(encoding="utf-8")
    assert "Placebo: shuffled scores" in page
    assert "Placebo: constant advantage" in page
    client = MlflowClient(f"sqlite:///{runs.store / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "stillhouse"]
    logged = {name for run in client.search_runs([experiment.experiment_id]) for name in run.data.metrics}
    assert {f"{arm}/accuracy" for arm in ARMS} <= logged
    assert {f"on_policy/accuracy_{figure}_to/{arm}" for arm in ARMS for figure in ("difference", "p")} <= logged


def test_another_level_trains_nothing_again(runs: Runs) -> None:
    assert all(runs.second.cached.values()), runs.second.cached
    assert "below 0.2." in str(runs.second.promotion)


def test_candidates_of_other_runs_are_not_promoted_past_their_placebos(runs: Runs) -> None:
    from flows.evaluate_models import evaluate_models

    with pytest.raises(ConfigError, match="whose placebos are not here"):
        evaluate_models(runs.config)
