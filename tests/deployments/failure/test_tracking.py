"""MLflow away before a run starts, in the middle of one and at its end: the run goes on, and nothing of it is lost."""

from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

NUM_PROMPTS = 24


def test_without_mlflow_a_run_completes_and_keeps_its_records_in_a_file(case: Any) -> None:
    case.mlflow.kill()
    try:
        flow = case.run("generate")
    finally:
        case.mlflow.start()
    assert case.states() == ["COMPLETED"]
    assert flow.output.count("The run goes on") == 1
    kinds = {line["kind"] for line in case.fallback()}
    assert {"run", "params", "config", "dataset", "metrics", "status"} <= kinds


def test_mlflow_that_goes_and_comes_back_amid_a_training_costs_no_step_of_it(case: Any) -> None:
    case.config["sft"]["num_epochs"] = 240
    flow = case.start_until_checkpoint()
    case.mlflow.kill()
    seen = case.newest_checkpoint()
    try:
        flow.wait_until(lambda: case.newest_checkpoint() > seen, "a checkpoint without MLflow")
    finally:
        case.mlflow.start()
    flow.finish()
    assert case.states() == ["COMPLETED"]
    assert case.trackings("train-sft") == ["FINISHED"]
    assert case.trackings("sft") == ["FINISHED"]


def test_a_run_that_ends_while_mlflow_is_away_gets_its_state_from_the_next_one(case: Any) -> None:
    flow = case.start_until_ten_answers()
    case.mlflow.kill()
    try:
        case.teacher.answered = NUM_PROMPTS
        flow.finish()
    finally:
        case.mlflow.start()
    assert case.trackings("generate") == ["RUNNING"]
    case.run("generate")
    assert case.trackings("generate") == ["FINISHED", "FINISHED"]
