"""Runs of deployments that end badly under a worker, and workers that end badly themselves."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.deployments.processes import assert_gone, wait_until
from tests.waiting import arguments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

NUM_PROMPTS = 24
StartWorker = Callable[..., Any]


def start_rollouts(case: Any, worker: Any) -> str:
    """Return a run of `generate` of which ten answers are in the journal, and no more come for now."""
    case.teacher.answered = 10
    run: str = case.submit("generate")
    worker.wait_until(lambda: case.journalled() == 10, "the answers are in the journal")
    return run


def start_training(case: Any, worker: Any) -> tuple[str, psutil.Process]:
    """Return a run of the deployment, its training under way: its id and the flow's process, whose child trains."""
    run: str = case.submit("train-sft")
    worker.wait_until(case.newest_checkpoint, "a checkpoint")
    family = [process for process in worker.family() if process.is_running()]
    (training,) = [process for process in family if "stillhouse.training" in arguments(process)]
    # The training is forked from a process of the flow's.
    forks = "stillhouse.processes.fork_server"
    flow = next(process for process in training.parents() if forks not in arguments(process))
    return run, flow


def rerun_resumes(case: Any) -> None:
    """Run the deployment again: rollouts and dataset come from the cache, the training goes on."""
    assert case.prefect.ended(case.submit("train-sft"))["type"] == "COMPLETED"
    assert case.teacher.num_asked == NUM_PROMPTS
    assert case.trackings("train-sft") == ["KILLED", "FINISHED"]
    assert case.trackings("sft") == ["FINISHED"]
    assert case.resumed_from_step() > 0
    assert case.parent_of("sft") == case.runs("train-sft")[-1].info.run_id


def test_sigkill_of_a_flow_under_a_worker_crashes_its_run_and_a_rerun_resumes(
    case: Any, start_worker: StartWorker
) -> None:
    worker = start_worker()
    run, flow = start_training(case, worker)
    family = flow.children(recursive=True)
    flow.kill()
    worker.wait_until(lambda: case.state(run) == "CRASHED", "the worker tells of the crash")
    assert_gone(family)
    rerun_resumes(case)


def test_retry_of_a_run_that_was_killed_goes_on_in_its_mlflow_run(case: Any, start_worker: StartWorker) -> None:
    worker = start_worker()
    run, flow = start_training(case, worker)
    flow.kill()
    worker.wait_until(lambda: case.state(run) == "CRASHED", "the worker tells of the crash")
    # The worker reports the crash twice, and a Retry in between would be Crashed, too.
    worker.wait_until(lambda: worker.output.count("exceeded its memory allocation") == 2, "the worker is done with it")
    # As the button does.
    retry = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}}
    case.prefect.post(f"flow_runs/{run}/set_state", retry)
    worker.wait_until(lambda: case.state(run) == "COMPLETED", "the run is done")
    assert case.trackings("train-sft") == ["FINISHED"]
    assert case.trackings("sft") == ["FINISHED"]
    assert case.resumed_from_step() > 0
    assert case.parent_of("sft") == case.runs("train-sft")[-1].info.run_id


def test_cancelling_a_run_ends_its_training_and_a_rerun_resumes(case: Any, start_worker: StartWorker) -> None:
    worker = start_worker()
    run, flow = start_training(case, worker)
    family = [flow, *flow.children(recursive=True)]
    case.prefect.post(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    worker.wait_until(lambda: case.state(run) == "CANCELLED", "the run is cancelled")
    assert "Crashed" not in case.history(run)
    assert_gone(family)
    rerun_resumes(case)


def test_a_run_cancelled_amid_its_rollouts_is_not_told_of_as_a_crash(case: Any, start_worker: StartWorker) -> None:
    worker = start_worker()
    run = start_rollouts(case, worker)
    case.prefect.post(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    worker.wait_until(lambda: case.state(run) == "CANCELLED", "the run is cancelled")
    assert "Crashed" not in case.history(run)


def test_a_run_paused_in_its_training_leaves_a_checkpoint_and_its_process_and_resumed_goes_on(
    case: Any, start_worker: StartWorker
) -> None:
    worker = start_worker()
    run, flow = start_training(case, worker)
    family = [flow, *flow.children(recursive=True)]
    case.pause(run)
    assert_gone(family)
    assert case.state(run) == "PAUSED"
    assert "Crashed" not in case.history(run)
    assert case.trackings("train-sft") == ["SCHEDULED"]
    checkpoint = case.newest_checkpoint()

    case.prefect.post(f"flow_runs/{run}/resume", {})
    assert case.prefect.ended(run)["type"] == "COMPLETED"
    assert case.resumed_from_step() == checkpoint
    assert case.teacher.num_asked == NUM_PROMPTS
    assert case.trackings("train-sft") == case.trackings("sft") == ["FINISHED"]


def test_a_busy_worker_that_is_told_to_end_leaves_no_process_and_a_run_that_the_automation_marks_crashed(
    case: Any, start_worker: StartWorker
) -> None:
    case.prefect.tool("python", "deployments/automations.py")
    worker = start_worker()
    run, flow = start_training(case, worker)
    assert flow.is_running()
    worker.end(signal.SIGTERM)

    successor = start_worker()
    successor.wait_until(lambda: case.state(run) == "CRASHED", "the automation marks the run as crashed")
    rerun_resumes(case)


def test_an_idle_worker_that_is_told_to_end_leaves_what_comes_to_the_next_one(
    case: Any, start_worker: StartWorker
) -> None:
    worker = start_worker()
    worker.wait_until(lambda: "started!" in worker.output, "the worker is ready")
    assert worker.end(signal.SIGTERM) == 0
    run = case.submit("train-sft")
    successor = start_worker()
    successor.wait_until(lambda: case.state(run) == "COMPLETED", "the next worker runs it")


def test_sigkill_of_a_worker_ends_its_flow_at_the_next_line_of_log_and_a_rerun_pays_nothing_twice(
    case: Any, start_worker: StartWorker
) -> None:
    worker = start_worker()
    run = start_rollouts(case, worker)
    family = worker.family()
    worker.process.kill()
    worker.process.wait()
    # With the last answer comes a line of log.
    case.teacher.answered = NUM_PROMPTS
    wait_until(lambda: case.state(run) == "CRASHED", "the flow says that it ended")
    assert_gone(family)

    start_worker()
    assert case.prefect.ended(case.submit("generate"))["type"] == "COMPLETED"
    assert case.trackings("generate") == ["KILLED", "FINISHED"]
    assert case.teacher.num_billed == NUM_PROMPTS
    assert not case.teacher.paid_twice


def test_a_machine_that_is_lost_with_the_training_of_a_run_is_noticed_and_another_goes_on(
    case: Any, deployed: Any, start_worker: StartWorker
) -> None:
    deployed.tool("python", "deployments/automations.py")
    case.config["runtime"]["training_deployment"] = "run-stage/gpu"
    start_worker()
    lost = start_worker("gpu")
    run = case.submit("train-sft")
    lost.wait_until(case.newest_checkpoint, "a checkpoint")
    # The worker, its flow and the training: nobody is left to say that they ended.
    lost.kill()

    start_worker("gpu")
    assert case.prefect.ended(run)["type"] == "COMPLETED"
    assert case.resumed_from_step() > 0
    assert case.teacher.num_asked == NUM_PROMPTS


def leases(case: Any) -> dict[Path, str]:
    """Return the files that keep the places of runs, with the time at which each is given up."""
    folder = case.prefect.folder / "prefect" / "concurrency_leases"
    return {path: json.loads(path.read_text())["expiration"] for path in folder.glob("*-*.json")}


def test_a_restart_of_the_server_is_one_line_and_a_deployments_run_keeps_its_place_and_can_be_cancelled(
    case: Any, start_worker: StartWorker
) -> None:
    worker = start_worker()
    run = start_rollouts(case, worker)
    before = leases(case)
    assert before
    case.prefect.kill()
    worker.wait_until(lambda: "does not answer" in worker.output, "the worker says so")
    # After three tries in 24 seconds Prefect would not look for cancels any more.
    time.sleep(40)
    case.prefect.start()
    worker.wait_until(lambda: leases(case).keys() == before.keys() and leases(case) != before, "a renewal")
    case.prefect.post(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    worker.wait_until(lambda: case.state(run) == "CANCELLED", "the run is cancelled")
    assert (worker.output.count("does not answer"), worker.output.count("answers again")) == (1, 1)

    case.teacher.answered = NUM_PROMPTS
    assert case.prefect.ended(case.submit("generate"))["type"] == "COMPLETED"
    assert not case.teacher.paid_twice


def test_a_run_that_lost_its_place_is_started_again_by_itself_and_goes_on(case: Any, start_worker: StartWorker) -> None:
    case.prefect.tool("python", "deployments/automations.py")
    worker = start_worker()
    run = start_rollouts(case, worker)
    for path in leases(case):
        path.unlink()
    worker.wait_until(lambda: case.prefect.get(f"flow_runs/{run}")["run_count"] == 2, "the run is started again")
    case.teacher.answered = NUM_PROMPTS
    assert case.prefect.ended(run)["type"] == "COMPLETED"
    assert case.teacher.num_billed == NUM_PROMPTS
    assert not case.teacher.paid_twice
