"""Traces of verifiers 0.4 (`traces.jsonl`, verifiers/v1/trace.py): a graph of messages, read along its last branch."""

from typing import Any, Final

from stillhouse.interop.messages import nested_calls, read_messages
from stillhouse.interop.source_record import SourceConversation, SourceRecord, Unmapped, schemas_of
from stillhouse.prompts.row import RowProblem
from stillhouse.types import ErrorRecord, JsonObject, TokenUsage

_BRANCHES: Final = "messages of other branches of the trace: the last one is read"
_TOKENS: Final = "token ids and log-probabilities, which belong to the tokenizer that sampled them"
_STOPPED_BY_LENGTH: Final = frozenset({"max_output_tokens", "max_total_tokens", "max_seq_len", "length"})


def is_verifiers_trace(row: JsonObject) -> bool:
    """Return whether a row is a trace of verifiers."""
    return isinstance(row.get("nodes"), list) and isinstance(row.get("task"), dict)


def read_verifiers_trace(row: JsonObject) -> SourceRecord:
    """Read a trace; see `ReadRow`."""
    nodes = row["nodes"]
    branch = _last_branch(nodes)
    if not branch:
        return SourceRecord(unmapped=[Unmapped("the trace holds no message", "nodes")])
    messages = read_messages([_message(nodes[index]) for index in branch], "nodes")
    sampled = [place for place, index in enumerate(branch) if nodes[index].get("sampled")]
    calls = row.get("calls") or []
    errors = [call["error"] for call in calls if call.get("error")] if not row.get("ok", True) else []
    failure: ErrorRecord | None = {"kind": "verifiers", "message": str(errors[-1])} if errors else None
    conversation = SourceConversation(
        messages,
        sampled[0] if sampled else len(messages),
        metadata=_metadata(row),
        schemas=schemas_of(nodes[branch[0]].get("tools") or row.get("tools") or ()) or None,
        model=next((call["model"] for call in reversed(calls) if call.get("model")), None),
        usage=_usage(calls),
        is_truncated=row.get("stop_condition") in _STOPPED_BY_LENGTH,
        failure=failure,
    )
    unmapped = []
    if len(branch) < len(nodes):
        unmapped.append(Unmapped(_BRANCHES, "nodes", len(nodes) - len(branch)))
    if any(node.get("token_ids") for node in nodes):
        unmapped.append(Unmapped(_TOKENS, "nodes.token_ids"))
    return SourceRecord([conversation], unmapped)


def _last_branch(nodes: list[JsonObject]) -> list[int]:
    """Return the indices of the messages from a root to the last node."""
    branch: list[int] = []
    index: Any = len(nodes) - 1 if nodes else None
    while index is not None:
        if not isinstance(index, int) or not 0 <= index < len(nodes) or index in branch:
            raise RowProblem(f"expected each node's parent to be the index of an earlier node, saw {index!r}")
        branch.append(index)
        index = nodes[index].get("parent")
    return branch[::-1]


def _message(node: JsonObject) -> Any:
    message = node.get("message")
    return {**message, "tool_calls": nested_calls(message)} if isinstance(message, dict) else message


def _metadata(row: JsonObject) -> JsonObject:
    """Return the task's fields; rewards and metrics under names of their own."""
    data = row["task"].get("data") or {}
    kept = {key: value for key, value in data.items() if key not in ("prompt", "system_prompt") and value is not None}
    rewards = {name: reward.get("score") for name, reward in (row.get("rewards") or {}).items() if reward}
    facts = {"tag": row["task"].get("type"), "verifiers_rewards": rewards, "verifiers_metrics": row.get("metrics")}
    return {**{key: value for key, value in facts.items() if value}, **kept}


def _usage(calls: list[JsonObject]) -> TokenUsage:
    counts = [call.get("usage") or {} for call in calls]
    return {  # type: ignore[return-value]
        name: sum(count[name] for count in counts)
        for name in ("prompt_tokens", "completion_tokens")
        if counts and all(isinstance(count.get(name), int) for count in counts)
    }
