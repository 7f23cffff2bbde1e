from stillhouse.rollouts.summary import add_up, summarise
from stillhouse.types import Message, StopReason, TokenUsage, ToolCall, Trajectory, Turn


def trajectory(
    *costs: float | None, usage: TokenUsage | None = None, stop_reason: StopReason = StopReason.ANSWERED
) -> Trajectory:
    usage = {"prompt_tokens": 10, "completion_tokens": 2} if usage is None else usage
    turns = [Turn("stop", usage, 0.5, "m", cost_usd=cost, num_tool_errors=1) for cost in costs]
    failed = stop_reason is StopReason.ERROR
    error = {"kind": "stall", "message": "no answer"} if failed else None
    return Trajectory("k", "p", 0, [], [], turns, stop_reason, "m", error)  # type: ignore[arg-type]


def test_tokens_turns_and_endings_are_counted() -> None:
    facts = summarise([trajectory(0.5, 0.25), trajectory(stop_reason=StopReason.ERROR)])
    assert (facts["trajectories"], facts["failed"], facts["turns"]) == (2, 1, 2)
    assert (facts["prompt_tokens"], facts["completion_tokens"], facts["tool_errors"]) == (20, 4, 2)
    assert facts["stop_reasons"] == {"answered": 1, "error": 1}
    assert facts["errors"] == {"stall": 1}
    assert facts["cost_usd"] == 0.75


def test_calls_that_prompts_bring_are_not_the_models() -> None:
    call: ToolCall = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer: Message = {"role": "assistant", "tool_calls": [call, call]}
    messages: list[Message] = [answer, {"role": "user", "content": "q"}, answer]
    turns = [Turn("stop", {}, 0.5, "m")]
    rows = [Trajectory("k", "p", 0, messages, [], sampled, StopReason.ANSWERED, "m") for sampled in (turns, [])]
    assert [summarise([row])["tool_calls"] for row in rows] == [2, 0]


def test_the_part_of_the_cost_that_is_by_a_price_is_estimated() -> None:
    told = Turn("stop", {}, 0.5, "m", cost_usd=0.5, is_cost_told=True)
    rows = [Trajectory("k", "p", 0, [], [], [told], StopReason.ANSWERED, "m"), trajectory(0.25)]
    assert (summarise(rows)["cost_usd"], summarise(rows)["estimated_usd"]) == (0.75, 0.25)


def test_one_unknown_cost_makes_the_sum_unknown() -> None:
    assert summarise([trajectory(0.5), trajectory(None)])["cost_usd"] is None


def test_summaries_of_shards_add_up_to_the_summary_of_all() -> None:
    rows = [trajectory(0.5), trajectory(0.25, 0.25), trajectory(stop_reason=StopReason.ERROR)]
    assert add_up([summarise(rows[:1]), summarise(rows[1:])]) == summarise(rows)


def test_a_shard_of_unknown_cost_makes_the_total_unknown() -> None:
    assert add_up([summarise([trajectory(0.5)]), summarise([trajectory(None)])])["cost_usd"] is None
