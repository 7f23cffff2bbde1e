import re
from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.agent.turns import REFUSAL
from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.tools import ToolArgs, Toolbox, tool
from stillhouse.types import Prompt, StopReason, Trajectory
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

Collect = Callable[..., Any]
MakePrompts = Callable[..., list[Prompt]]
Script = Callable[[ReceivedRequest], Reply]

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
CALL = ("calculator", '{"expression": "1+1"}')


def always_call(request: ReceivedRequest) -> Reply:
    return Reply(completion("2") if request.body.get("tool_choice") == "none" else completion(tool_calls=[CALL]))


def only(got: Any) -> Trajectory:
    assert got.error is None
    assert len(got.trajectories) == 1
    return got.trajectories[0]


def used(body: dict[str, Any], prompt: int, completed: int) -> dict[str, Any]:
    return {**body, "usage": {"prompt_tokens": prompt, "completion_tokens": completed}}


def test_the_closing_answer_is_asked_for_with_tools_shown_and_forbidden(collect: Collect) -> None:
    with SimulatedProvider(always_call) as provider:
        row = only(collect(provider.url, 1, config=RolloutsConfig(max_turns=2)))
        assert row.stop_reason is StopReason.ANSWERED
        assert row.messages[-1]["content"] == "2"
        assert len(provider.requests) == 3
        last = provider.requests[-1]
        assert (last["tool_choice"], last["tools"]) == ("none", row.tools)
        assert last["messages"][-1]["content"] == REFUSAL
        assert all("tool_choice" not in request for request in provider.requests[:-1])


def test_an_answer_that_stays_wrong_is_a_row_that_is_not_sampled_again(collect: Collect) -> None:
    with SimulatedProvider(lambda request: Reply(completion("five"))) as provider:
        config = RolloutsConfig(response_schema=SCHEMA)
        row = only(collect(provider.url, 1, config=config))
        assert row.stop_reason is StopReason.INVALID
        assert row.error is not None
        assert "not JSON" in row.error["message"]
        assert only(collect(provider.url, 1, config=config)) == row
        assert provider.num_billed == 2


def test_a_fence_around_a_right_answer_costs_no_correction_and_is_in_no_row(collect: Collect) -> None:
    with SimulatedProvider(lambda request: Reply(completion('```json\n{"sum": 5}\n```'))) as provider:
        config = RolloutsConfig(response_schema=SCHEMA)
        row = only(collect(provider.url, 1, config=config))
        assert row.stop_reason is StopReason.ANSWERED
        assert row.messages[-1]["content"] == '{"sum": 5}'
        assert only(collect(provider.url, 1, config=config)) == row
        assert provider.num_billed == 1
        # Recorded tokens keep the answer that they belong to.
        recorded = RolloutsConfig(response_schema=SCHEMA, record_tokens=True)
        assert only(collect(provider.url, 1, config=recorded)).messages[1]["content"] == '```json\n{"sum": 5}\n```'


def test_a_schema_that_is_none_ends_the_collection_before_anything_is_paid(collect: Collect) -> None:
    with SimulatedProvider(always_call) as provider:
        got = collect(provider.url, 3, config=RolloutsConfig(response_schema={"type": "objekt"}))
        assert "rollouts.response_schema is no JSON schema" in str(got.error)
        assert provider.ledger == []


@pytest.mark.parametrize(("num_tokens", "is_noted"), [(9, True), (200, False)])
def test_a_completion_that_the_endpoint_cut_below_max_tokens_says_so(
    collect: Collect, num_tokens: int, is_noted: bool
) -> None:
    with SimulatedProvider(
        lambda _: Reply(used(completion("and so", finish_reason="length"), 50, num_tokens))
    ) as provider:
        row = only(collect(provider.url, 1, config=RolloutsConfig(max_tokens=200)))
    assert row.stop_reason is StopReason.LENGTH
    expected = r"after 9 tokens behind a prompt of 50, though max_tokens was 200: .* --max-model-len"
    assert (row.error is not None) == is_noted
    assert row.error is None or re.search(expected, row.error["message"])


def test_a_rollout_ends_before_its_cap_is_passed_and_goes_on_once_the_cap_is_raised(
    collect: Collect,
) -> None:
    def think(request: ReceivedRequest) -> Reply:
        done = len(request.body["messages"]) > 4
        return Reply(used(completion("2") if done else completion(tool_calls=[CALL]), 400, 100))

    with SimulatedProvider(think) as provider:
        low, high = (RolloutsConfig(max_tokens=200, max_rollout_tokens=cap) for cap in (1540, 9000))
        row = only(collect(provider.url, 1, config=low))
        assert (row.stop_reason, row.error, len(row.turns)) == (StopReason.BUDGET, None, 2)
        assert only(collect(provider.url, 1, config=low)).stop_reason is StopReason.BUDGET
        assert provider.num_billed == 2
        assert only(collect(provider.url, 1, config=high)).stop_reason is StopReason.ANSWERED
        assert provider.num_billed == 3


def test_a_completion_that_the_cap_cut_is_asked_whole_once_the_cap_is_raised(collect: Collect) -> None:
    def write(request: ReceivedRequest) -> Reply:
        short = request.body["max_tokens"] < 2000
        return Reply(used(completion("half" if short else "whole", finish_reason="length" if short else "stop"), 50, 9))

    with SimulatedProvider(write) as provider:
        capped = RolloutsConfig(max_tokens=2000, max_rollout_tokens=1000)
        row = only(collect(provider.url, 1, config=capped))
        assert (row.stop_reason, row.turns[0].finish_reason) == (StopReason.BUDGET, "length")
        free = only(collect(provider.url, 1, config=RolloutsConfig(max_tokens=2000)))
        assert (free.stop_reason, free.messages[-1]["content"]) == (StopReason.ANSWERED, "whole")
        # What is paid for is used under any cap.
        assert only(collect(provider.url, 1, config=capped)) == free
        assert provider.num_billed == 2


@tool
def whose(args: ToolArgs) -> str:
    """Tells whose call this is."""
    return f"{args.metadata['name']} {args.prompt_id} {args.sample_index} {args.rollout_key}"


def test_a_tool_is_told_whose_call_it_runs(collect: Collect, make_prompts: MakePrompts) -> None:
    def ask(request: ReceivedRequest) -> Reply:
        done = request.body["messages"][-1]["role"] == "tool"
        return Reply(completion("ok") if done else completion(tool_calls=[("whose", "{}")]))

    (prompt,) = make_prompts(1)
    with SimulatedProvider(ask) as provider:
        rows = [
            only(collect(provider.url, [prompt], toolbox=Toolbox([whose]), metadata={prompt.id: {"name": name}}))
            for name in ("Ada", "Ada", "Bob")
        ]
    assert rows[0].messages[2]["content"] == f"Ada {prompt.id} 0 {rows[0].rollout_key}"
    assert rows[0] == rows[1]
    assert rows[2].rollout_key != rows[0].rollout_key
    assert provider.num_billed == 4


def test_metadata_that_no_tool_is_told_changes_no_rollout(collect: Collect, make_prompts: MakePrompts) -> None:
    (prompt,) = make_prompts(1)
    with SimulatedProvider(lambda request: Reply(completion("2"))) as provider:
        first = only(collect(provider.url, [prompt], metadata={prompt.id: {"name": "Ada"}}))
        assert only(collect(provider.url, [prompt], metadata={})) == first


@pytest.mark.parametrize("status", [400, 500])
def test_what_was_said_before_a_failure_stays_in_the_row(collect: Collect, status: int) -> None:
    def fail_later(request: ReceivedRequest) -> Reply:
        if len(request.body["messages"]) > 1:
            return error(status, "no")
        return Reply(completion(tool_calls=[CALL]))

    with SimulatedProvider(fail_later) as provider:
        row = only(collect(provider.url, 1))
    assert (row.stop_reason, len(row.turns), len(row.messages)) == (StopReason.ERROR, 1, 3)


def test_a_rollout_has_a_wall_time(collect: Collect, two_sums_then_answer: Script) -> None:
    def script(request: ReceivedRequest) -> Reply:
        if request.num_turns == 1 and "question 0" in str(request.body["messages"][0]):
            return Reply(completion("late"), delay_s=20)
        return two_sums_then_answer(request)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, 3, config=RolloutsConfig(timeout_s=0.5))
        sent = len(provider.ledger)
        again = collect(provider.url, 3, config=RolloutsConfig(timeout_s=0.5))
        assert len(provider.ledger) == sent
    for collected in (got, again):
        reasons = sorted(row.stop_reason.value for row in collected.trajectories)
        assert reasons == ["answered", "answered", "timeout"]
    late = next(row for row in got.trajectories if row.stop_reason is StopReason.TIMEOUT)
    assert len(late.turns) == 1


def test_waiting_for_a_slot_is_no_part_of_the_wall_time(collect: Collect) -> None:
    # Three are under way at once for the single slot, so the third waits as long as its whole allowance.
    with SimulatedProvider(lambda request: Reply(completion("hello"), delay_s=0.4)) as provider:
        got = collect(
            provider.url,
            4,
            config=RolloutsConfig(timeout_s=0.8),
            runtime=RuntimeConfig(concurrency=1, max_concurrency=1),
        )
    assert [row.stop_reason for row in got.trajectories] == [StopReason.ANSWERED] * 4
