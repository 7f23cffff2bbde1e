"""Logs of inspect_ai (`inspect log convert --to json`), and traces of verifiers 0.4 (`traces.jsonl`)."""

from typing import Any, Final, cast

from stillhouse.interop.messages import first_answer, nested_calls, read_messages
from stillhouse.interop.source_record import SourceConversation, SourceRecord, Unmapped, schemas_of
from stillhouse.prompts.row import RowProblem
from stillhouse.types import ErrorRecord, JsonObject, TokenUsage

_SCORES: Final = "what the log's scorers say: kept in the prompt's metadata under `inspect_scores`"
_BRANCHES: Final = "messages of other branches of the trace: the last one is read"
_TOKENS: Final = "token ids and log-probabilities, which belong to the tokenizer that sampled them"
_STOPPED_BY_LENGTH: Final = frozenset({"max_output_tokens", "max_total_tokens", "max_seq_len", "length"})


def is_inspect_log(row: JsonObject) -> bool:
    return isinstance(row.get("eval"), dict) and "version" in row and "status" in row


def read_inspect_log(row: JsonObject) -> SourceRecord:
    """Read the conversations of a log, in the order of its samples; see `ReadRow`."""
    samples = row.get("samples") or []
    if not samples:
        no_samples = Unmapped("a log without samples: write it with them (--log-samples)", "samples")
        return SourceRecord(unmapped=[no_samples])
    conversations = [_conversation(sample, row["eval"]) for sample in samples]
    scored = sum(bool(sample.get("scores")) for sample in samples)
    return SourceRecord(conversations, [Unmapped(_SCORES, "scores", scored)] if scored else [])


def _conversation(sample: JsonObject, evaluation: JsonObject) -> SourceConversation:
    messages = read_messages([_message(message) for message in sample.get("messages") or []], "samples.messages")
    output = sample.get("output") or {}
    usage = output.get("usage") or {}
    counts = {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")}
    target = sample.get("target")
    metadata = {
        **(sample.get("metadata") or {}),
        "tag": evaluation.get("task"),
        "expected_answer": target if isinstance(target, str) else None,
        "inspect_id": sample.get("id"),
        "inspect_scores": {name: score.get("value") for name, score in (sample.get("scores") or {}).items()},
    }
    failure: ErrorRecord | None = None
    if (error := sample.get("error")) is not None:
        failure = {"kind": "inspect", "message": str(error.get("message", error))}
    choices = output.get("choices") or [{}]
    # The tools offered to the first call of the model.
    offered = next((event.get("tools") for event in sample.get("events") or () if event.get("event") == "model"), None)
    return SourceConversation(
        messages,
        first_answer(messages),
        metadata={key: value for key, value in metadata.items() if value not in (None, "", {})},
        schemas=schemas_of(offered or ()) or None,
        model=output.get("model") or evaluation.get("model"),
        usage=cast(TokenUsage, {name: count for name, count in counts.items() if isinstance(count, int)}),
        is_truncated=choices[0].get("stop_reason") == "max_tokens",
        failure=failure,
    )


def _message(message: JsonObject) -> JsonObject:
    kept = {key: message.get(key) for key in ("role", "content")}
    return {**kept, "tool_calls": nested_calls(message), "tool_call_id": message.get("tool_call_id") or None}


def is_verifiers_trace(row: JsonObject) -> bool:
    return isinstance(row.get("nodes"), list) and isinstance(row.get("task"), dict)


def read_verifiers_trace(row: JsonObject) -> SourceRecord:
    """Read a trace; see `ReadRow`."""
    nodes = row["nodes"]
    branch = _last_branch(nodes)
    if not branch:
        return SourceRecord(unmapped=[Unmapped("the trace holds no message", "nodes")])
    messages = read_messages([_message_of(nodes[index]) for index in branch], "nodes")
    sampled = [place for place, index in enumerate(branch) if nodes[index].get("sampled")]
    calls = row.get("calls") or []
    errors = [call["error"] for call in calls if call.get("error")] if not row.get("ok", True) else []
    counts = [call.get("usage") or {} for call in calls]
    usage = {
        name: sum(count[name] for count in counts)
        for name in ("prompt_tokens", "completion_tokens")
        if counts and all(isinstance(count.get(name), int) for count in counts)
    }
    failure: ErrorRecord | None = {"kind": "verifiers", "message": str(errors[-1])} if errors else None
    conversation = SourceConversation(
        messages,
        sampled[0] if sampled else len(messages),
        metadata=_metadata(row),
        schemas=schemas_of(nodes[branch[0]].get("tools") or row.get("tools") or ()) or None,
        model=next((call["model"] for call in reversed(calls) if call.get("model")), None),
        usage=cast(TokenUsage, usage),
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


def _message_of(node: JsonObject) -> Any:
    message = node.get("message")
    return {**message, "tool_calls": nested_calls(message)} if isinstance(message, dict) else message


def _metadata(row: JsonObject) -> JsonObject:
    """Return the task's fields; rewards and metrics under names of their own."""
    data = row["task"].get("data") or {}
    kept = {key: value for key, value in data.items() if key not in ("prompt", "system_prompt") and value is not None}
    rewards = {name: reward.get("score") for name, reward in (row.get("rewards") or {}).items() if reward}
    facts = {"tag": row["task"].get("type"), "verifiers_rewards": rewards, "verifiers_metrics": row.get("metrics")}
    return {**{key: value for key, value in facts.items() if value}, **kept}
