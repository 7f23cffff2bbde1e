"""Counts, tokens and cost of a set of trajectories, as figures that add up over shards."""

from collections import Counter
from collections.abc import Iterable, Sequence

from stillhouse.types import JsonObject, StopReason, Trajectory


def summarise(trajectories: Iterable[Trajectory]) -> JsonObject:
    """Return counts, tokens and cost; `cost_usd` is None as soon as the price of one turn is unknown.

    `estimated_usd` is the part of it that is by a price, and not what the endpoint said that it charged.
    `not_taken` counts turns by the parameters that their endpoint refused, if it refused any.
    """
    stop_reasons: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    not_taken: Counter[str] = Counter()
    prompt_tokens = completion_tokens = num_turns = num_tool_calls = num_tool_errors = 0
    costs: list[float | None] = []
    estimated_usd = 0.0
    for trajectory in trajectories:
        stop_reasons[trajectory.stop_reason] += 1
        if trajectory.error is not None:
            errors[trajectory.error["kind"]] += 1
        answers = [message for message in trajectory.messages if message["role"] == "assistant"]
        # Prompts may bring some of a history.
        sampled = answers[len(answers) - len(trajectory.turns) :]
        num_tool_calls += sum(len(message.get("tool_calls") or ()) for message in sampled)
        for turn in trajectory.turns:
            num_turns += 1
            prompt_tokens += turn.usage.get("prompt_tokens", 0)
            completion_tokens += turn.usage.get("completion_tokens", 0)
            num_tool_errors += turn.num_tool_errors
            costs.append(turn.cost_usd)
            estimated_usd += 0.0 if turn.is_cost_told else turn.cost_usd or 0.0
            not_taken.update(
                name if sent is None else f"{name} (sent: {sent})" for name, sent in (turn.not_taken or {}).items()
            )
    summary: JsonObject = {
        "trajectories": stop_reasons.total(),
        "failed": stop_reasons[StopReason.ERROR],
        "turns": num_turns,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "tool_calls": num_tool_calls,
        "tool_errors": num_tool_errors,
        "cost_usd": _sum_known(costs),
        "estimated_usd": estimated_usd,
        "stop_reasons": dict(sorted(stop_reasons.items())),
        "errors": dict(sorted(errors.items())),
    }
    return {**summary, "not_taken": dict(sorted(not_taken.items()))} if not_taken else summary


def add_up(summaries: Sequence[JsonObject]) -> JsonObject:
    """Return the summary of all shards together; keys that hold neither a number nor counts are left out."""
    total: JsonObject = {}
    for summary in summaries:
        for name, value in summary.items():
            if isinstance(value, dict):
                total[name] = dict(sorted((Counter(total.get(name, {})) + Counter(value)).items()))
            elif isinstance(value, int | float):
                total[name] = total.get(name, 0) + value
    total["cost_usd"] = _sum_known([summary.get("cost_usd") for summary in summaries])
    return total


def _sum_known(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known and len(known) == len(costs) else None
