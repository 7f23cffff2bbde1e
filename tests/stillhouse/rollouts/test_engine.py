import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.simulated_provider import Asked, Reply, SimulatedProvider, completion, error
from stillhouse.config import BudgetConfig, RolloutsConfig, RuntimeConfig
from stillhouse.errors import AuthenticationError, BudgetReached, EndpointError, QuotaError, StoreError
from stillhouse.progress import NoProgress
from stillhouse.rollouts import Controller, Endpoint, Journal, RolloutCollector
from stillhouse.rollouts.budget import Budget
from stillhouse.rollouts.limits import Caps, RateControl, RequestSize, Ticket
from stillhouse.tools import ToolArgs, Toolbox, tool
from stillhouse.tools.calculator import calculator
from stillhouse.types import Prompt, StopReason

Collect = Callable[..., Any]
MakePrompts = Callable[..., list[Prompt]]


def num_turns_before(asked: Asked) -> int:
    return sum(message["role"] == "assistant" for message in asked.body["messages"])


def two_sums_then_answer(asked: Asked) -> Reply:
    turn = num_turns_before(asked)
    if turn < 2:
        return Reply(completion(tool_calls=[("calculator", json.dumps({"expression": f"{turn} + 1"}))]))
    return Reply(completion("The answer is 2."))


def hello(asked: Asked) -> Reply:
    return Reply(completion("hello"))


def test_every_prompt_gets_its_samples_with_tools_run(collect: Collect, make_prompts: MakePrompts) -> None:
    with SimulatedProvider(two_sums_then_answer) as provider:
        got = collect(provider.url, make_prompts(10), config=RolloutsConfig(num_samples=3))
    assert got.error is None
    assert len({one.rollout_key for one in got.trajectories}) == 30
    for one in got.trajectories:
        assert one.stop_reason is StopReason.ANSWERED
        assert [message["role"] for message in one.messages] == [
            *("user", "assistant", "tool", "assistant", "tool", "assistant"),
        ]
        assert one.tools == [calculator.schema]
        assert len(one.turns) == 3
        assert one.model == "simulated"
    assert got.stats.num_requests == provider.num_billed == 90
    assert got.stats.num_tool_calls == 60
    assert got.stats.completion_tokens == 450


def test_finished_trajectories_are_not_asked_again_and_equal_to_the_byte(
    collect: Collect, make_prompts: MakePrompts
) -> None:
    with SimulatedProvider(two_sums_then_answer) as provider:
        first = collect(provider.url, make_prompts(10))
        billed = provider.num_billed
        second = collect(provider.url, make_prompts(10))
        assert provider.num_billed == billed
    assert second.stats.num_requests == 0
    assert second.stats.num_replayed == 30

    def as_bytes(got: Any) -> list[bytes]:
        return sorted(orjson.dumps(one) for one in got.trajectories)

    assert as_bytes(first) == as_bytes(second)


def test_a_rollout_replayed_turn_by_turn_has_the_facts_it_was_paid_with(
    collect: Collect, make_prompts: MakePrompts
) -> None:
    broken = True

    def script(asked: Asked) -> Reply:
        if num_turns_before(asked) == 2 and broken:
            return error(500, "down")
        return two_sums_then_answer(asked)

    with SimulatedProvider(script) as provider:
        failed = collect(provider.url, make_prompts(5))
        assert [one.stop_reason for one in failed.trajectories] == [StopReason.ERROR] * 5
        assert failed.trajectories[0].error == {"kind": "transient", "message": "HTTP 500: down", "status": 500}
        billed, broken = provider.num_billed, False
        finished = collect(provider.url, make_prompts(5))
    assert provider.num_billed == billed + 5
    assert finished.stats.num_replayed == 10
    assert finished.stats.num_tool_calls == 0
    before = {one.rollout_key: one for one in failed.trajectories}
    for one in finished.trajectories:
        assert one.stop_reason is StopReason.ANSWERED
        assert orjson.dumps(one.turns[:2]) == orjson.dumps(before[one.rollout_key].turns)
        assert one.messages[:5] == before[one.rollout_key].messages


def test_more_samples_owe_only_the_missing_ones(collect: Collect, make_prompts: MakePrompts) -> None:
    with SimulatedProvider(hello) as provider:
        collect(provider.url, make_prompts(4), config=RolloutsConfig(num_samples=2))
        got = collect(provider.url, make_prompts(4), config=RolloutsConfig(num_samples=5))
    assert provider.num_billed == 20
    assert len(got.trajectories) == 20


def other_toolbox() -> Toolbox:
    @tool
    def calculator(expression: str) -> str:
        """Reckon."""
        return expression

    return Toolbox([calculator])


@pytest.mark.parametrize(
    "change",
    [
        {"identity": "model@2"},
        {"config": RolloutsConfig(system_prompt="Be brief.")},
        {"config": RolloutsConfig(temperature=0.1)},
        {"config": RolloutsConfig(seed=5)},
        {"toolbox": other_toolbox()},
        {"config": RolloutsConfig(record_tokens=True)},
    ],
)
def test_another_model_prompt_sampling_or_toolbox_is_asked_anew(
    collect: Collect, make_prompts: MakePrompts, change: dict[str, Any]
) -> None:
    with SimulatedProvider(hello) as provider:
        collect(provider.url, make_prompts(3))
        collect(provider.url, make_prompts(3), **change)
    assert provider.num_billed == 6


def test_system_prompt_and_seed_reach_the_endpoint(collect: Collect, make_prompts: MakePrompts) -> None:
    with SimulatedProvider(two_sums_then_answer) as provider:
        collect(provider.url, make_prompts(2), config=RolloutsConfig(system_prompt="Be brief.", num_samples=2))
        without = collect(provider.url, make_prompts(1), config=RolloutsConfig(seed=None))
    with_seed = [body for body in provider.requests if "seed" in body]
    assert len(with_seed) == 12
    assert len({body["seed"] for body in with_seed}) == 12
    assert all(body["messages"][0] == {"role": "system", "content": "Be brief."} for body in with_seed)
    assert without.trajectories[0].messages[0]["role"] == "user"


def test_a_prompts_own_system_message_stays(collect: Collect) -> None:
    own = Prompt("p" * 64, [{"role": "system", "content": "Mine."}, {"role": "user", "content": "hi"}])
    with SimulatedProvider(hello) as provider:
        got = collect(provider.url, [own], config=RolloutsConfig(system_prompt="Yours."))
    assert [message["content"] for message in got.trajectories[0].messages] == ["Mine.", "hi", "hello"]


def test_a_prompt_is_offered_the_tools_it_names(collect: Collect, make_prompts: MakePrompts) -> None:
    with SimulatedProvider(hello) as provider:
        none = collect(provider.url, make_prompts(1, tools=[]))
        unknown = collect(provider.url, make_prompts(2, tools=["browse"]))
    assert "tools" not in provider.requests[0]
    assert none.trajectories[0].tools == []
    assert len(provider.ledger) == 1
    assert [one.stop_reason for one in unknown.trajectories] == [StopReason.ERROR] * 2
    assert "'browse' is not configured" in unknown.trajectories[0].error["message"]


def test_tools_that_raise_hang_or_are_called_wrongly_are_told_to_the_model(
    collect: Collect, make_prompts: MakePrompts
) -> None:
    @tool
    def explode() -> str:
        """Raises."""
        raise RuntimeError("boom")

    @tool(timeout_s=0.2)
    def hang() -> str:
        """Hangs."""
        threading.Event().wait()
        return ""

    calls = [("explode", "{}"), ("hang", "{}"), ("calculator", '{"expression": '), ("nothing", "{}")]

    def script(asked: Asked) -> Reply:
        return Reply(completion("sorry") if num_turns_before(asked) else completion(tool_calls=calls))

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, make_prompts(2), toolbox=Toolbox([explode, hang, calculator]))
    for one in got.trajectories:
        assert one.stop_reason is StopReason.ANSWERED
        told = [json.loads(message["content"])["error"] for message in one.messages if message["role"] == "tool"]
        assert told[0] == "RuntimeError: boom"
        assert told[1] == "hang did not return within 0.2 s"
        assert told[2].startswith("the arguments are not valid JSON")
        assert told[3] == "there is no tool 'nothing'; available tools: explode, hang, calculator"
        assert [turn.num_tool_errors for turn in one.turns] == [4, 0]
    assert got.stats.num_tool_errors == 8


def test_a_prompt_longer_than_the_context_is_recorded_and_never_asked_again(
    collect: Collect, make_prompts: MakePrompts
) -> None:
    def script(asked: Asked) -> Reply:
        if "question 1" in str(asked.body["messages"]):
            return error(400, "maximum context length is 16 tokens", code="context_length_exceeded")
        return hello(asked)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, make_prompts(3))
        assert len(provider.ledger) == 3
        again = collect(provider.url, make_prompts(3))
        assert len(provider.ledger) == 3
    for collected in (got, again):
        reasons = sorted(one.stop_reason.value for one in collected.trajectories)
        assert reasons == ["answered", "answered", "context_overflow"]
        overflow = next(one for one in collected.trajectories if one.stop_reason is StopReason.CONTEXT_OVERFLOW)
        assert overflow.error == {
            "kind": "permanent",
            "message": "HTTP 400: maximum context length is 16 tokens",
            "status": 400,
        }


def test_one_bad_request_among_many_is_a_row(collect: Collect, make_prompts: MakePrompts) -> None:
    def script(asked: Asked) -> Reply:
        return error(400, "no such field") if "question 7" in str(asked.body["messages"]) else hello(asked)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, make_prompts(30))
    assert got.error is None
    assert sum(one.stop_reason is StopReason.ERROR for one in got.trajectories) == 1
    assert len(got.trajectories) == len(provider.ledger) == 30


def test_faults_of_every_passing_kind_lose_and_double_nothing(collect: Collect, make_prompts: MakePrompts) -> None:
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

    def script(asked: Asked) -> Reply:
        if asked.attempt == 0 and asked.index % 5 == 0:
            return faults[asked.index // 5 % len(faults)]
        return two_sums_then_answer(asked)

    with SimulatedProvider(script) as provider:
        got = collect(
            provider.url,
            make_prompts(40),
            runtime=RuntimeConfig(max_attempts=6, concurrency=8, request_timeout_s=0.5),
        )
    assert len({one.rollout_key for one in got.trajectories}) == len(got.trajectories) == 40
    assert all(one.stop_reason is StopReason.ANSWERED for one in got.trajectories)
    assert got.stats.num_completions == 120
    assert got.stats.retries.total() > 10
    assert got.stats.retries["stall"] > 0
    assert got.stats.num_rate_limited > 0


def test_rate_limits_use_up_no_attempts_and_concurrency_recovers(collect: Collect, make_prompts: MakePrompts) -> None:
    controller = Controller(RateControl(32, Caps(1000)))
    limits: list[int] = []
    provider = SimulatedProvider(
        lambda asked: Reply(completion("hello"), delay_s=0.005), max_in_flight=4, retry_after_s=0.1
    )

    def script(asked: Asked) -> Reply:
        limits.append(controller.limit)
        if asked.index == 150:
            provider.max_in_flight = None
        return Reply(completion("hello"), delay_s=0.005)

    provider.script = script
    with provider:
        got = collect(
            provider.url,
            make_prompts(400),
            runtime=RuntimeConfig(max_attempts=1, concurrency=32),
            controller=controller,
        )
    assert [one.stop_reason for one in got.trajectories] == [StopReason.ANSWERED] * 400
    assert provider.num_billed == 400
    assert got.stats.num_rate_limited == provider.num_rejected > 0
    assert min(limits) <= 4
    assert limits[-1] > 6
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
    collect: Collect, make_prompts: MakePrompts, reply: Reply, expected: type[EndpointError]
) -> None:
    with SimulatedProvider(lambda asked: reply) as provider:
        got = collect(provider.url, make_prompts(500))
        assert len(provider.ledger) <= 16
    assert type(got.error) is expected
    assert provider.url in str(got.error)
    assert "secret-key" not in str(got.error)


def test_answers_under_way_come_in_before_the_run_stops(collect: Collect, make_prompts: MakePrompts) -> None:
    def script(asked: Asked) -> Reply:
        if asked.index == 7:
            return error(402, "Insufficient credits")
        return Reply(completion("hello"), delay_s=0.3)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, make_prompts(50))
        assert isinstance(got.error, QuotaError)
        assert len(provider.ledger) == 8
        assert len(got.trajectories) == 7
        assert "Saved: 7 finished rollouts and all 7 answers" in str(got.error)
        provider.script = hello
        again = collect(provider.url, make_prompts(50))
    assert len(again.trajectories) == 50
    assert provider.num_billed == 50


def test_a_budget_ends_the_run_before_it_is_passed_and_a_raised_one_goes_on(
    collect: Collect, make_prompts: MakePrompts
) -> None:
    options: dict[str, Any] = {"config": RolloutsConfig(max_tokens=20), "toolbox": Toolbox([])}
    with SimulatedProvider(lambda asked: Reply(completion("hello"), delay_s=0.01)) as provider:
        small = Budget(BudgetConfig(max_tokens=300), None)
        got = collect(provider.url, make_prompts(50), budget=small, **options)
        assert isinstance(got.error, BudgetReached)
        assert "budget.max_tokens" in str(got.error)
        # 12 tokens each; the last request had to fit with its worst case.
        assert 8 <= len(got.trajectories) == provider.num_billed <= 300 // 12
        large = Budget(BudgetConfig(max_tokens=5000), None)
        again = collect(provider.url, make_prompts(50), budget=large, **options)
        assert again.error is None
        assert provider.num_billed == 50
    assert large.snapshot().counted.tokens == 50 * 12


def test_an_answer_that_never_comes_is_asked_for_again(collect: Collect, make_prompts: MakePrompts) -> None:
    def one_is_silent(asked: Asked) -> Reply:
        silent = asked.attempt == 0 and asked.body["messages"][0]["content"] == "question 90"
        return Reply(completion("hello"), fault="hang" if silent else "none")

    with SimulatedProvider(one_is_silent) as provider:
        started = time.monotonic()
        got = collect(provider.url, make_prompts(100))
        assert len(provider.ledger) == 101
    assert len(got.trajectories) == 100
    assert time.monotonic() - started < 20
    assert got.stats.retries == {}


def test_silent_requests_in_every_slot_leave_room_for_their_copies(collect: Collect, make_prompts: MakePrompts) -> None:
    def some_are_silent(asked: Asked) -> Reply:
        number = int(asked.body["messages"][0]["content"].split()[1])
        return Reply(completion("hello"), fault="hang" if asked.attempt == 0 and number >= 32 else "none")

    with SimulatedProvider(some_are_silent) as provider:
        runtime = RuntimeConfig(concurrency=4, max_concurrency=4, request_timeout_s=60)
        started = time.monotonic()
        got = collect(provider.url, make_prompts(36), runtime=runtime)
        assert len(provider.ledger) == 40
    assert len(got.trajectories) == 36
    assert time.monotonic() - started < 30


def test_a_tool_is_told_the_metadata_of_its_prompt_and_only_then_it_decides(
    collect: Collect, make_prompts: MakePrompts
) -> None:
    @tool
    def secret(args: ToolArgs) -> str:
        """Tells the prompt's secret."""
        return f"{args.metadata['secret']} of sample {args.sample_index}"

    def call_then_answer(asked: Asked) -> Reply:
        called = asked.body["messages"][-1]["role"] == "tool"
        return Reply(completion("done")) if called else Reply(completion(tool_calls=[("secret", "{}")]))

    prompt = make_prompts(1)[0]
    with SimulatedProvider(call_then_answer) as provider:
        for toolbox, others in ((Toolbox([secret]), 2), (Toolbox([calculator]), 0)):
            billed = provider.num_billed
            for word in ("blue", "red"):
                got = collect(provider.url, [prompt], toolbox=toolbox, metadata={prompt.id: {"secret": word}})
                if others:
                    assert got.trajectories[0].messages[2]["content"] == f"{word} of sample 0"
            assert provider.num_billed - billed == 2 + others


def test_an_endpoint_that_is_not_there_is_named(collect: Collect, make_prompts: MakePrompts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    got = collect(url, make_prompts(1000))
    assert type(got.error) is EndpointError
    assert f"{url}: cannot be reached after 3 tries" in str(got.error)
    assert "Check that the server runs" in str(got.error)
    assert got.stats.num_requests < 100


def test_a_journal_that_cannot_be_written_stops_the_run(
    collect: Collect, make_prompts: MakePrompts, tmp_path: Path
) -> None:
    path = tmp_path / "other.sqlite3"
    with SimulatedProvider(lambda asked: Reply(completion("x" * 20_000))) as provider:
        with Journal(path) as journal:
            # As a disk does that fills up.
            pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
            journal._connection.execute(f"PRAGMA max_page_count = {pages + 200}")
            got = collect(provider.url, make_prompts(100), journal=journal)
        assert isinstance(got.error, StoreError)
        assert "full" in str(got.error)
        assert 0 < len(got.trajectories) < 100
        billed = provider.num_billed
        assert billed < 60
        with Journal(path) as journal:
            again = collect(provider.url, make_prompts(100), journal=journal)
        assert again.error is None
        assert len(again.trajectories) == 100
        assert again.stats.num_replayed >= len(got.trajectories)


def test_two_collections_on_one_journal_pay_once_and_agree(
    collect: Collect, make_prompts: MakePrompts, tmp_path: Path
) -> None:
    path = tmp_path / "shared.sqlite3"
    results: list[Any] = [None, None]

    def script(asked: Asked) -> Reply:
        # Every answer is another, as with a provider that knows no seeds.
        return Reply(completion(f"answer {asked.index}"), delay_s=0.01)

    def run(index: int, url: str) -> None:
        with Journal(path) as journal:
            results[index] = collect(url, make_prompts(60), journal=journal)

    with SimulatedProvider(script) as provider:
        threads = [threading.Thread(target=run, args=(index, provider.url)) for index in (0, 1)]
        threads[0].start()
        time.sleep(0.15)
        threads[1].start()
        for thread in threads:
            thread.join(30)
        assert provider.num_billed == 60
        run(0, provider.url)
        assert provider.num_billed == 60
    one, two = [{row.rollout_key: orjson.dumps(row) for row in result.trajectories} for result in results]
    assert one == two
    assert len(one) == 60


def test_a_rollout_has_a_wall_time(collect: Collect, make_prompts: MakePrompts) -> None:
    def script(asked: Asked) -> Reply:
        if num_turns_before(asked) == 1 and "question 0" in str(asked.body["messages"][0]):
            return Reply(completion("late"), delay_s=20)
        return two_sums_then_answer(asked)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, make_prompts(3), config=RolloutsConfig(timeout_s=0.5))
        sent = len(provider.ledger)
        again = collect(provider.url, make_prompts(3), config=RolloutsConfig(timeout_s=0.5))
        assert len(provider.ledger) == sent
    for collected in (got, again):
        reasons = sorted(one.stop_reason.value for one in collected.trajectories)
        assert reasons == ["answered", "answered", "timeout"]
    late = next(one for one in got.trajectories if one.stop_reason is StopReason.TIMEOUT)
    assert len(late.turns) == 1


def test_waiting_for_a_slot_is_no_part_of_the_wall_time(collect: Collect, make_prompts: MakePrompts) -> None:
    # Three are under way at once for the single slot, so the third waits as long as its whole allowance.
    with SimulatedProvider(lambda asked: Reply(completion("hello"), delay_s=0.4)) as provider:
        got = collect(
            provider.url,
            make_prompts(4),
            config=RolloutsConfig(timeout_s=0.8),
            runtime=RuntimeConfig(concurrency=1, max_concurrency=1),
        )
    assert [one.stop_reason for one in got.trajectories] == [StopReason.ANSWERED] * 4


def test_prompts_are_drawn_as_room_appears(collect: Collect, make_prompts: MakePrompts) -> None:
    drawn = 0
    ahead: list[int] = []

    def prompts() -> Iterator[Prompt]:
        nonlocal drawn
        for prompt in make_prompts(300):
            drawn += 1
            yield prompt

    def script(asked: Asked) -> Reply:
        ahead.append(drawn - provider.num_billed)
        return Reply(completion("hello"), delay_s=0.002)

    provider = SimulatedProvider(script)
    with provider:
        got = collect(provider.url, prompts(), runtime=RuntimeConfig(concurrency=8, max_concurrency=8))
    assert len(got.trajectories) == 300
    assert max(ahead) < 100
    assert got.updates[-1].total is None


def test_a_slow_rollout_holds_up_no_other(collect: Collect, make_prompts: MakePrompts) -> None:
    def script(asked: Asked) -> Reply:
        slow = "question 0" in str(asked.body["messages"])
        return Reply(completion("hello"), delay_s=1.0 if slow else 0.01)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, make_prompts(40), runtime=RuntimeConfig(concurrency=4, max_concurrency=4))
    assert got.trajectories[-1].messages[0]["content"] == "question 0"


class Watching(Controller):
    """A controller that writes down who asked as what."""

    def __init__(self) -> None:
        super().__init__(RateControl(2, Caps(2)))
        self.asked: list[bool] = []

    def try_acquire(self, size: RequestSize, *, continuing: bool) -> Ticket | None:
        self.asked.append(continuing)
        return super().try_acquire(size, continuing=continuing)


def test_rollouts_under_way_go_before_new_ones(collect: Collect, make_prompts: MakePrompts) -> None:
    controller = Watching()
    with SimulatedProvider(two_sums_then_answer) as provider:
        collect(provider.url, make_prompts(30), controller=controller)
    firsts = [
        index
        for index, body in enumerate(provider.requests)
        if not any(message["role"] == "assistant" for message in body["messages"])
    ]
    assert controller.asked.count(True) == 60
    assert controller.asked.count(False) == 30
    # Were all first turns sent at once, they would be the first 30 of the 90 requests.
    assert firsts[15] > 30


def test_progress_tells_what_a_person_wants_to_see(collect: Collect, make_prompts: MakePrompts) -> None:
    with SimulatedProvider(hello) as provider:
        got = collect(provider.url, make_prompts(5), config=RolloutsConfig(num_samples=2))
    last = got.updates[-1]
    assert (last.done, last.total, last.failed, last.num_replayed) == (10, 10, 0, 0)
    assert last.tokens_per_s > 0
    assert last.limit >= 8
    assert last.usd is None


def test_leaving_early_ends_everything_and_keeps_what_was_paid(
    journal: Journal, collect: Collect, make_prompts: MakePrompts
) -> None:
    controller = Controller(RateControl(4, Caps(4)))

    async def take_five(url: str) -> int:
        collection = RolloutCollector(
            make_prompts(100),
            endpoint=Endpoint(url, "simulated", "model@1"),
            config=RolloutsConfig(),
            toolbox=Toolbox([calculator]),
            journal=journal,
            runtime=RuntimeConfig(),
            progress=NoProgress(),
            controller=controller,
        )
        async with contextlib.aclosing(collection):
            taken = 0
            async for _ in collection:
                taken += 1
                if taken == 5:
                    break
        return len(asyncio.all_tasks())

    with SimulatedProvider(two_sums_then_answer) as provider:
        assert asyncio.run(take_five(provider.url)) == 1
        assert controller.snapshot().in_flight == 0
        billed = provider.num_billed
        assert billed < 100
        got = collect(provider.url, make_prompts(100))
    assert len(got.trajectories) == 100
    assert provider.num_billed <= 300 + 8


def test_prompts_that_raise_end_the_collection_with_their_error(collect: Collect, make_prompts: MakePrompts) -> None:
    def prompts() -> Iterator[Prompt]:
        yield from make_prompts(3)
        raise ValueError("the file ends in the middle")

    with SimulatedProvider(hello) as provider:
        got = collect(provider.url, prompts())
    assert isinstance(got.error, ValueError)


def test_token_ids_reach_the_trajectory_when_asked_for(collect: Collect, make_prompts: MakePrompts) -> None:
    def script(asked: Asked) -> Reply:
        body = completion("hello")
        body["prompt_token_ids"] = [1, 2]
        body["choices"][0]["token_ids"] = [3, 4]
        body["choices"][0]["logprobs"] = {"content": [{"logprob": -0.5}, {"logprob": -1.5}]}
        return Reply(body)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, make_prompts(2), config=RolloutsConfig(record_tokens=True))
    turn = got.trajectories[0].turns[0]
    assert (turn.prompt_ids, turn.completion_ids, turn.sampling_logprobs) == ([1, 2], [3, 4], [-0.5, -1.5])


def test_the_key_is_in_no_file(collect: Collect, make_prompts: MakePrompts, tmp_path: Path) -> None:
    with SimulatedProvider(hello) as provider:
        collect(provider.url, make_prompts(3))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert all(b"secret-key" not in path.read_bytes() for path in files)
