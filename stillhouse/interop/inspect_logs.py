"""Logs of inspect_ai (`inspect log convert --to json`), one trajectory for each sample of the file."""

from typing import Final, cast

from stillhouse.interop.messages import first_answer, nested_calls, read_messages
from stillhouse.interop.source_record import SourceConversation, SourceRecord, Unmapped, schemas_of
from stillhouse.types import ErrorRecord, JsonObject, TokenUsage

_SCORES: Final = "what the log's scorers say: kept in the prompt's metadata under `inspect_scores`"


def is_inspect_log(row: JsonObject) -> bool:
    """Return whether a JSON file is a log of inspect_ai."""
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
