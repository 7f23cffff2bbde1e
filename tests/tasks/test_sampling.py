import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulated_provider import Reply, SimulatedProvider, completion, error
from stillhouse.config import BudgetConfig, RolloutsConfig, RuntimeConfig, TeacherConfig, ToolsConfig, TrackingConfig
from stillhouse.errors import AuthenticationError, BudgetReached, ConfigError, FailureBudgetExceeded
from stillhouse.inference import Endpoint
from stillhouse.inference.endpoint import Price
from stillhouse.progress.state import NoProgress
from stillhouse.store import prompt_id
from stillhouse.types import ErrorRecord, JsonObject, Message, Prompt, StopReason, Trajectory
from tasks.run.context import RunContext
from tasks.sampling import Sampled, check_failures, sample


def make_prompts(count: int) -> list[Prompt]:
    every: list[list[Message]] = [[{"role": "user", "content": f"question {index}"}] for index in range(count)]
    return [Prompt(prompt_id(messages, None), messages) for messages in every]


def sampled(
    url: str, store: Path, *, price: Price | None = None, budget: JsonObject | None = None, **teacher: Any
) -> Sampled:
    context = RunContext(
        run_id=str(store),
        runtime=RuntimeConfig(store=str(store)),
        tracking=TrackingConfig(enabled=False),
        budget=BudgetConfig(**budget or {}),
        mlflow_run_id=None,
    )
    section = TeacherConfig(model="m", base_url=url, **teacher)
    endpoint = Endpoint(url, "m", "m", price=price, key_variable="TEACHER_KEY")
    config = RolloutsConfig(max_tokens=20)
    asked = sample(
        make_prompts(12), endpoint, config, ToolsConfig(), context, NoProgress(), part="shard", teacher=section
    )
    return asyncio.run(asked)


def test_trajectories_come_in_the_order_of_the_prompts(tmp_path: Path) -> None:
    with SimulatedProvider(lambda asked: Reply(completion("hi"), delay_s=0.02 * (asked.index % 3))) as provider:
        got = sampled(provider.url, tmp_path)
    assert [one.messages[0]["content"] for one in got.trajectories] == [f"question {index}" for index in range(12)]
    assert (got.facts["trajectories"], got.facts["requests"], got.facts["failed"]) == (12, 12, 0)


def test_the_budget_of_the_run_ends_it(tmp_path: Path) -> None:
    with SimulatedProvider(lambda asked: Reply(completion("hi"))) as provider:
        with pytest.raises(BudgetReached, match=r"budget\.max_usd"):
            sampled(provider.url, tmp_path, price=Price(1.0, 1.0), budget={"max_usd": 0.0002})
        assert 0 < provider.num_billed < 12


def test_a_cap_in_money_without_a_price_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with SimulatedProvider(lambda asked: Reply(completion("hi"))) as provider:
        with pytest.raises(ConfigError, match="the price of the teacher is unknown"):
            sampled(provider.url, tmp_path, budget={"max_usd": 1.0})
        assert provider.ledger == []


def test_a_key_that_is_refused_is_told_with_its_variable_and_its_setting(tmp_path: Path) -> None:
    with (
        SimulatedProvider(lambda asked: error(401, "Incorrect API key")) as provider,
        pytest.raises(AuthenticationError, match=r"variable TEACHER_KEY:.* in runtime\.api_key_env"),
    ):
        sampled(provider.url, tmp_path)


@pytest.mark.slow
def test_a_teacher_is_asked_through_its_batch_endpoint(tmp_path: Path, batch_server: Any) -> None:
    batch_server.finish.set()
    got = sampled(batch_server.url, tmp_path, price=Price(1.0, 2.0), batch=True)
    assert [one.messages[-1]["content"] for one in got.trajectories] == [
        f"answer to question {index}\u2028end" for index in range(12)
    ]
    assert len(batch_server.batches) == 1
    again = sampled(batch_server.url, tmp_path, price=Price(1.0, 2.0), batch=True)
    assert len(again.trajectories) == 12
    assert len(batch_server.asked) == 12


def test_answers_that_miss_their_schema_use_up_no_failure_budget() -> None:
    def trajectory(stop_reason: StopReason) -> Trajectory:
        error: ErrorRecord = {"kind": "invalid", "message": "not a number"}
        return Trajectory("k", "p", 0, [], [], [], stop_reason, "m", error)

    check_failures(Sampled([trajectory(StopReason.INVALID)] * 3, {}), 0.0)
    with pytest.raises(FailureBudgetExceeded, match="1 of 2 rollouts failed"):
        check_failures(Sampled([trajectory(StopReason.ERROR), trajectory(StopReason.INVALID)], {}), 0.1)
