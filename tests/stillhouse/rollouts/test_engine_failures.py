"""When something fails the engine tries again, records it, or stops with everything saved."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import BudgetConfig, RolloutsConfig, RuntimeConfig
from stillhouse.errors import AuthenticationError, BudgetReached, EndpointError, QuotaError, StoreError
from stillhouse.inference import Controller, Journal
from stillhouse.inference.budget import Budget
from stillhouse.inference.rate_limit import Caps, RateControl
from stillhouse.tools import Toolbox
from stillhouse.types import StopReason
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error
from tests.provider.answers import Service
from tests.provider.limits import Limits, Step

Collect = Callable[..., Any]
Script = Callable[[ReceivedRequest], Reply]


def test_a_prompt_longer_than_the_context_is_recorded_and_never_asked_again(collect: Collect, hello: Script) -> None:
    def script(request: ReceivedRequest) -> Reply:
        if "question 1" in str(request.body["messages"]):
            return error(400, "maximum context length is 16 tokens", code="context_length_exceeded")
        return hello(request)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, 3)
        assert len(provider.ledger) == 3
        again = collect(provider.url, 3)
        assert len(provider.ledger) == 3
    for collected in (got, again):
        reasons = sorted(row.stop_reason.value for row in collected.trajectories)
        assert reasons == ["answered", "answered", "context_overflow"]
        overflow = next(row for row in collected.trajectories if row.stop_reason is StopReason.CONTEXT_OVERFLOW)
        assert overflow.error == {
            "kind": "permanent",
            "message": "HTTP 400: maximum context length is 16 tokens",
            "status": 400,
        }


def test_faults_of_every_passing_kind_lose_and_double_nothing(collect: Collect, two_sums_then_answer: Script) -> None:
    faults = [
        error(500, "oops"),
        Reply(completion("x"), fault="reset"),
        Reply(completion("x"), fault="cut"),
        Reply({"choices": None}),
        Reply({"error": {"message": "upstream", "code": 502}}),
        Reply(completion("", completion_tokens=0)),
        Reply(completion("x"), fault="hang"),
        error(429, "slow", headers={"retry-after": "0.1"}),
    ]

    def script(request: ReceivedRequest) -> Reply:
        if request.attempt == 0 and request.index % 5 == 0:
            return faults[request.index // 5 % len(faults)]
        return two_sums_then_answer(request)

    with SimulatedProvider(script) as provider:
        got = collect(
            provider.url,
            40,
            runtime=RuntimeConfig(max_attempts=6, concurrency=8, request_timeout_s=0.5),
        )
    assert len({row.rollout_key for row in got.trajectories}) == len(got.trajectories) == 40
    assert all(row.stop_reason is StopReason.ANSWERED for row in got.trajectories)
    assert got.stats.num_completions == 120
    assert got.stats.retries.total() > 10
    assert got.stats.retries["stall"] > 0
    assert got.stats.num_rate_limited > 0


def test_rate_limits_use_up_no_attempts_and_concurrency_recovers(collect: Collect) -> None:
    controller = Controller(RateControl(32, Caps(1000)))
    limits: list[int] = []
    # Slow enough that a cap in flight is not taken for one of requests a second, also on a busy machine.
    reply = Reply(completion("hello"), delay_s=0.03)
    steps = (Step(at_s=0, limits=Limits(concurrency=4)), Step(at_s=1.0, limits=Limits()))
    service = Service(steps=steps, retry_after=0.1, say_why=False)

    def script(request: ReceivedRequest) -> Reply:
        limits.append(controller.limit)
        return reply

    with SimulatedProvider(script, service=service) as provider:
        got = collect(
            provider.url,
            900,
            runtime=RuntimeConfig(max_attempts=1, concurrency=32),
            controller=controller,
        )
    assert [row.stop_reason for row in got.trajectories] == [StopReason.ANSWERED] * 900
    assert provider.num_billed == 900
    assert got.stats.num_rate_limited == provider.num_rejected > 0
    lowest = min(limits)
    assert lowest <= 4
    # How fast is tested in virtual time; here a busy machine may be what bounds it.
    assert max(limits[limits.index(lowest) :]) > lowest
    assert controller.snapshot().in_flight == 0


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (error(401, "Incorrect API key", code="invalid_api_key"), AuthenticationError),
        (error(402, "Insufficient credits"), QuotaError),
        (error(404, "The model `simulated` does not exist", code="model_not_found"), EndpointError),
    ],
)
def test_what_concerns_every_request_stops_the_run(
    collect: Collect, reply: Reply, expected: type[EndpointError]
) -> None:
    with SimulatedProvider(lambda request: reply) as provider:
        got = collect(provider.url, 500)
        assert len(provider.ledger) <= 16
    assert type(got.error) is expected
    assert provider.url in str(got.error)
    assert "secret-key" not in str(got.error)


def test_answers_under_way_come_in_before_the_run_stops(collect: Collect, hello: Script) -> None:
    def script(request: ReceivedRequest) -> Reply:
        if request.index == 7:
            return error(402, "Insufficient credits")
        return Reply(completion("hello"), delay_s=0.3)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, 50)
        assert isinstance(got.error, QuotaError)
        assert len(provider.ledger) == 8
        assert len(got.trajectories) == 7
        provider.script = hello
        again = collect(provider.url, 50)
    assert len(again.trajectories) == 50
    assert provider.num_billed == 50


def test_a_budget_ends_the_run_before_it_is_passed_and_a_raised_one_goes_on(collect: Collect) -> None:
    options: dict[str, Any] = {"config": RolloutsConfig(max_tokens=20), "toolbox": Toolbox([])}
    with SimulatedProvider(lambda request: Reply(completion("hello"), delay_s=0.01)) as provider:
        small = Budget(BudgetConfig(max_tokens=300), None)
        got = collect(provider.url, 50, budget=small, **options)
        assert isinstance(got.error, BudgetReached)
        assert "budget.max_tokens" in str(got.error)
        # 12 tokens each; the last request had to fit with its worst case.
        assert 8 <= len(got.trajectories) == provider.num_billed <= 300 // 12
        large = Budget(BudgetConfig(max_tokens=5000), None)
        again = collect(provider.url, 50, budget=large, **options)
        assert again.error is None
        assert provider.num_billed == 50
    assert large.counted.tokens == 50 * 12


def test_silent_requests_in_every_slot_leave_room_for_their_copies(collect: Collect) -> None:
    def some_are_silent(request: ReceivedRequest) -> Reply:
        number = int(request.body["messages"][0]["content"].split()[1])
        return Reply(completion("hello"), fault="hang" if request.attempt == 0 and number >= 32 else "none")

    with SimulatedProvider(some_are_silent) as provider:
        runtime = RuntimeConfig(concurrency=4, max_concurrency=4, request_timeout_s=60)
        got = collect(provider.url, 36, runtime=runtime)
        assert len(provider.ledger) == 40
    assert len(got.trajectories) == 36
    assert (got.stats.retries, got.stats.num_copies) == ({}, 4)


def test_an_endpoint_that_is_not_there_is_named(collect: Collect) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        got = collect(url, 1000)
    assert type(got.error) is EndpointError
    assert url in str(got.error)
    assert got.stats.num_requests < 100


def test_a_journal_that_cannot_be_written_stops_the_run(collect: Collect, tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite3"
    with SimulatedProvider(lambda request: Reply(completion("x" * 20_000))) as provider:
        with Journal(path) as journal:
            # As a disk does that fills up.
            pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
            journal._connection.execute(f"PRAGMA max_page_count = {pages + 200}")
            runtime = RuntimeConfig(concurrency=8, max_concurrency=8)
            got = collect(provider.url, 100, journal=journal, runtime=runtime)
        assert isinstance(got.error, StoreError)
        assert "full" in str(got.error)
        assert 0 < len(got.trajectories) < 100
        billed = provider.num_billed
        assert billed < 60
        with Journal(path) as journal:
            again = collect(provider.url, 100, journal=journal)
        assert again.error is None
        assert len(again.trajectories) == 100
        assert again.stats.num_replayed_completions >= len(got.trajectories)


def test_a_call_that_the_endpoint_cannot_read_is_the_models_failure(collect: Collect) -> None:
    refused = error(400, "Failed to call a function.", code="tool_use_failed")
    with SimulatedProvider(lambda _: refused) as provider:
        for _ in range(2):
            (row,) = collect(provider.url, 1).trajectories
            assert (row.stop_reason, row.error["kind"]) == (StopReason.MALFORMED, "malformed")
            assert len(provider.ledger) == 2


def test_an_answer_with_an_unknown_finish_reason_is_named_and_whole_once_the_config_says_so(
    collect: Collect, caplog: pytest.LogCaptureFixture
) -> None:
    with SimulatedProvider(lambda _: Reply(completion("4", finish_reason="Brand"))) as provider:
        (row,) = collect(provider.url, 1).trajectories
        assert row.stop_reason is StopReason.UNFINISHED
        assert "finish_reason 'Brand'" in caplog.text
        (row,) = collect(provider.url, 1, config=RolloutsConfig(finish_reasons=("Brand",))).trajectories
        assert (row.stop_reason, row.error, row.turns[0].finish_reason) == (StopReason.ANSWERED, None, "Brand")
        assert len(provider.ledger) == 1
