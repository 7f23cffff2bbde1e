"""Runs from the shell that end badly, each with a Prefect server, an MLflow server and a flow in its own process."""

import signal
from typing import Any

import pytest

from tests.provider import Reply, error
from tests.waiting import arguments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

NUM_PROMPTS = 24


def test_an_exception_fails_the_run_and_the_same_command_asks_only_what_failed(case: Any) -> None:
    case.teacher.answered = 10
    case.teacher.otherwise = error(400, "no such prompt is answered here")
    flow = case.start("generate")
    assert flow.process.wait(900) == 1
    assert "error[" in flow.output
    assert "Traceback" not in flow.output
    assert case.states() == ["FAILED"]
    assert case.trackings("generate") == ["FAILED"]

    case.teacher.answered = NUM_PROMPTS
    before = case.teacher.num_billed
    case.run("generate")
    assert case.teacher.num_billed - before == NUM_PROMPTS - 10
    assert case.states() == ["FAILED", "COMPLETED"]
    assert case.trackings("generate") == ["FAILED", "FINISHED"]


def test_sigterm_in_a_training_crashes_the_run_and_the_same_command_resumes(case: Any) -> None:
    flow = case.start_until_checkpoint()
    assert flow.end(signal.SIGTERM) == 1
    assert "the same command goes on" in flow.output
    assert case.states() == ["CRASHED"]
    assert case.trackings("train-sft") == ["KILLED"]
    assert case.trackings("sft") == ["KILLED"]

    asked = case.teacher.num_billed
    case.run("sft")
    assert case.teacher.num_billed == asked == NUM_PROMPTS
    assert case.states() == ["CRASHED", "COMPLETED"]
    assert case.trackings("train-sft") == ["KILLED", "FINISHED"]
    assert case.trackings("sft") == ["FINISHED"]
    assert case.resumed_from_step() > 0


def test_sigkill_leaves_no_rank_of_torchrun_and_the_next_run_ends_the_tracking_of_the_killed_one(case: Any) -> None:
    case.config["runtime"] |= {"launcher": "torchrun", "num_processes": 2}
    flow = case.start_until_checkpoint()
    ranks = [process for process in flow.family() if "stillhouse.training" in arguments(process)]
    assert len(ranks) >= 2
    assert flow.end(signal.SIGKILL) == -signal.SIGKILL
    # Nobody is left who could say that it ended; the automation of zombies does, see test_worker.py.
    assert case.states() == ["RUNNING"]
    assert case.trackings("train-sft") == ["RUNNING"]
    (killed,) = case.flow_runs()
    assert case.view(killed["name"]) == f"{NUM_PROMPTS} trajectories"

    asked = case.teacher.num_billed
    case.run("sft")
    assert case.teacher.num_billed == asked == NUM_PROMPTS
    assert case.states() == ["RUNNING", "COMPLETED"]
    assert case.trackings("train-sft") == ["KILLED", "FINISHED"]
    assert case.trackings("sft") == ["FINISHED"]
    assert case.resumed_from_step() > 0


def test_sigkill_amid_rollouts_costs_no_more_than_the_requests_in_flight(case: Any) -> None:
    case.teacher.otherwise = Reply(b"", fault="hang")
    flow = case.start_until_ten_answers()
    flow.wait_until(lambda: case.teacher.provider.in_flight == 4, "as many requests in flight as may be")
    assert flow.end(signal.SIGKILL) == -signal.SIGKILL

    case.teacher.answered = NUM_PROMPTS
    case.run("generate")
    assert case.teacher.num_asked == NUM_PROMPTS + 4
    assert case.teacher.num_billed == NUM_PROMPTS
    assert not case.teacher.paid_twice
    assert case.trackings("generate") == ["KILLED", "FINISHED"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_teachers_server_ends_with_the_run_that_started_it(case: Any, number: signal.Signals) -> None:
    case.config["teacher"] = {"model": "embedded:teacher"}
    case.config["rollouts"] = {"num_samples": 40, "max_tokens": 256, "temperature": 1.0}
    flow = case.start("generate")
    flow.wait_until(lambda: case.journalled() >= 8, "some answers of the teacher")
    assert any("stillhouse.serving" in arguments(process) for process in flow.family())
    flow.end(number)


def test_a_restart_of_the_prefect_server_amid_a_run_is_waited_out(case: Any) -> None:
    flow = case.start_until_ten_answers()
    case.prefect.kill()
    # The rollouts end and what comes next finds no server.
    case.teacher.answered = NUM_PROMPTS
    flow.wait_until(lambda: case.teacher.num_billed == NUM_PROMPTS, "all answers")
    case.prefect.start()
    flow.finish()
    assert case.states() == ["COMPLETED"]
    assert case.trackings("generate") == ["FINISHED"]
    assert not case.teacher.paid_twice
