import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.simulated_provider import Asked, Reply, SimulatedProvider, completion, error
from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.progress import NoProgress
from stillhouse.rollouts import Controller, Endpoint, EverySample, Journal, RolloutCollector
from stillhouse.rollouts.limits import Caps, RateControl, RequestSize, Ticket
from stillhouse.tools import ToolArgs, Toolbox, tool
from stillhouse.tools.calculator import calculator
from stillhouse.types import Prompt, StopReason

Collect = Callable[..., Any]
MakePrompts = Callable[..., list[Prompt]]
Script = Callable[[Asked], Reply]


def num_turns_before(asked: Asked) -> int:
    return sum(message["role"] == "assistant" for message in asked.body["messages"])


def hello(asked: Asked) -> Reply:
    return Reply(completion("hello"))


def test_every_prompt_gets_its_samples_with_tools_run(
    collect: Collect, make_prompts: MakePrompts, two_sums_then_answer: Script
) -> None:
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
    collect: Collect, make_prompts: MakePrompts, two_sums_then_answer: Script
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
    collect: Collect, make_prompts: MakePrompts, two_sums_then_answer: Script
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


def test_system_prompt_and_seed_reach_the_endpoint(
    collect: Collect, make_prompts: MakePrompts, two_sums_then_answer: Script
) -> None:
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


def test_a_rollout_has_a_wall_time(collect: Collect, make_prompts: MakePrompts, two_sums_then_answer: Script) -> None:
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


def test_rollouts_under_way_go_before_new_ones(
    collect: Collect, make_prompts: MakePrompts, two_sums_then_answer: Script
) -> None:
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
    journal: Journal, collect: Collect, make_prompts: MakePrompts, two_sums_then_answer: Script
) -> None:
    controller = Controller(RateControl(4, Caps(4)))

    async def take_five(url: str) -> int:
        collection = RolloutCollector(
            EverySample(make_prompts(100), 1),
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
