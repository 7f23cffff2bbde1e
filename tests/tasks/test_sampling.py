import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.config import BudgetConfig, RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.errors import AuthenticationError, BudgetReached, ConfigError, FailureBudgetExceeded
from stillhouse.store import prompt_id
from stillhouse.types import ErrorRecord, Message, Prompt, StopReason, Trajectory
from tasks.models import teacher_model
from tasks.run.context import RunContext
from tasks.sampling import Sampled, check_failures, sample
from tests.provider import Reply, SimulatedProvider, completion, error

Sample = Callable[..., Sampled]


def make_prompts(count: int) -> list[Prompt]:
    conversations: list[list[Message]] = [[{"role": "user", "content": f"question {index}"}] for index in range(count)]
    return [Prompt(prompt_id(messages, None), messages) for messages in conversations]


@pytest.fixture
def sample_from(make_context: Callable[..., RunContext], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sampled]:
    """Sample twelve prompts from a teacher with `usd` as the price of a million tokens."""
    monkeypatch.setenv("TEACHER_KEY", "any")

    def run(
        url: str, *, usd: float | None = None, max_usd: float | None = None, batch: bool = False, **rollouts: Any
    ) -> Sampled:
        prices = {} if usd is None else {"usd_per_million_tokens": {"prompt": usd, "completion": usd}}
        teacher = TeacherConfig(model="m", base_url=url, batch=batch, **prices)
        context = make_context(budget=BudgetConfig(max_usd=max_usd), api_key_env="TEACHER_KEY")
        model, config = teacher_model(teacher), RolloutsConfig(max_tokens=20, **rollouts)
        work = sample(
            make_prompts(12), model, config, ToolsConfig(), context, stage="rollouts", part="shard", teacher=teacher
        )
        return asyncio.run(work)

    return run


def test_trajectories_come_in_the_order_of_the_prompts(sample_from: Sample) -> None:
    with SimulatedProvider(lambda request: Reply(completion("hi"), delay_s=0.02 * (request.index % 3))) as provider:
        sampled = sample_from(provider.url)
    assert [row.messages[0]["content"] for row in sampled.trajectories] == [f"question {index}" for index in range(12)]
    assert (sampled.facts["trajectories"], sampled.facts["requests"], sampled.facts["failed"]) == (12, 12, 0)


def test_the_budget_of_the_run_ends_it(sample_from: Sample) -> None:
    with SimulatedProvider(lambda request: Reply(completion("hi"))) as provider:
        with pytest.raises(BudgetReached, match=r"budget\.max_usd"):
            sample_from(provider.url, usd=1.0, max_usd=0.0002)
        assert 0 < provider.num_billed < 12


def test_a_cap_in_money_without_a_price_is_refused_before_anything_is_asked(sample_from: Sample) -> None:
    with SimulatedProvider(lambda request: Reply(completion("hi"))) as provider:
        with pytest.raises(ConfigError, match="price"):
            sample_from(provider.url, max_usd=1.0)
        assert provider.ledger == []


def test_a_key_that_is_refused_is_told_with_its_variable_and_its_setting(sample_from: Sample) -> None:
    with (
        SimulatedProvider(lambda request: error(401, "Incorrect API key")) as provider,
        pytest.raises(AuthenticationError, match=r"TEACHER_KEY.*runtime\.api_key_env"),
    ):
        sample_from(provider.url)


def test_answers_from_when_the_temperature_had_a_default_are_not_paid_for_again_without_a_word(
    sample_from: Sample,
) -> None:
    with SimulatedProvider(lambda request: Reply(completion("hi"))) as provider:
        sample_from(provider.url, temperature=0.7)
        with pytest.raises(ConfigError, match=r"rollouts\.temperature.*0\.7"):
            sample_from(provider.url)
        sample_from(provider.url, temperature=0.7)
        assert provider.num_billed == 12


@pytest.mark.slow
def test_a_teacher_is_asked_through_its_batch_endpoint(sample_from: Sample, batch_server: Any) -> None:
    batch_server.finish.set()
    sampled = sample_from(batch_server.url, usd=1.0, batch=True)
    assert [row.messages[-1]["content"] for row in sampled.trajectories] == [
        f"answer to question {index}\u2028end" for index in range(12)
    ]
    assert len(batch_server.batches) == 1
    again = sample_from(batch_server.url, usd=1.0, batch=True)
    assert len(again.trajectories) == 12
    assert len(batch_server.asked) == 12


def test_answers_that_miss_their_schema_use_up_no_failure_budget() -> None:
    def trajectory(stop_reason: StopReason) -> Trajectory:
        error: ErrorRecord = {"kind": "invalid", "message": "not a number"}
        return Trajectory("k", "p", 0, [], [], [], stop_reason, "m", error)

    check_failures(Sampled([trajectory(StopReason.INVALID)] * 3, {}), 0.0)
    with pytest.raises(FailureBudgetExceeded, match="1 of 2"):
        check_failures(Sampled([trajectory(StopReason.ERROR), trajectory(StopReason.INVALID)], {}), 0.1)
