"""Rollouts of `rnow test` and `stillhouse test`, one JSON file each: `NAME.json` or `rollout_N/sample_M.json`.

Keys as in rnow/cli/test.py: `completed` is true, false while the rollout runs, or "error"; `truncated` means that the
conversation reached its context window; `errors` are those of reward functions and do not affect the conversation.
"""

from typing import Final

from stillhouse.interop.messages import first_answer, read_messages
from stillhouse.interop.source_record import SourceConversation, SourceRecord, Unmapped, pop_unmapped
from stillhouse.prompts.row import metadata_of
from stillhouse.types import ErrorRecord, JsonObject, TokenUsage

_UNMAPPED: Final = {
    **dict.fromkeys(("total_reward", "rewards"), "scores of other programs; set tools.rewards_file to score here"),
    "errors": "errors of another program's reward functions",
    "tool_errors": "errors of tools, counted here by their results",
}
_BATCH_KEYS: Final = ("prompt_index", "iteration", "batch")
"""Position in the batch, which rnow writes into the prompt's metadata."""
_SIZES: Final = ("totalTokens", "promptTokens", "completion", "completionTokens")
_OURS: Final = ("verified", "stop_reason", "cost_usd")
"""Keys that only `stillhouse test` writes."""


def is_rollout(row: JsonObject) -> bool:
    return "conversation" in row and ("completed" in row or "success" in row)


def read_rollout(row: JsonObject) -> SourceRecord:
    """Read a rollout; see `ReadRow`."""
    row = dict(row)
    unmapped = pop_unmapped(row, _UNMAPPED)
    metadata = dict(metadata_of(row))
    row.pop("metadata", None)
    unmapped += [
        Unmapped("the rollout's place in its batch", f"metadata.{key}", metadata.pop(key))
        for key in _BATCH_KEYS
        if key in metadata
    ]
    failure = _failure(row)
    conversation = row.pop("conversation", None)
    if not conversation and failure is not None:
        return SourceRecord(
            unmapped=[*unmapped, Unmapped("the rollout failed before its first message", "error", failure["message"])]
        )
    messages = read_messages(conversation, "conversation")
    turns = row.pop("turns", None)
    record = SourceConversation(
        messages,
        first_answer(messages, turns if isinstance(turns, int) else None),
        metadata=metadata,
        model=model if isinstance(model := row.pop("model", None), str) else None,
        usage=_usage(row),
        is_truncated=row.pop("truncated", None) is True,
        failure=failure,
    )
    if isinstance(turns, int) and turns > sum(message["role"] == "assistant" for message in messages):
        unmapped.append(Unmapped("more turns than messages of the assistant", "turns", turns))
    for key in ("id", "completed", "success", "error", *_SIZES, *_OURS):
        row.pop(key, None)
    unmapped += [
        Unmapped("a key that rollouts of rnow are not known to have", key, value) for key, value in row.items()
    ]
    return SourceRecord([record], unmapped)


def _failure(row: JsonObject) -> ErrorRecord | None:
    if row.get("completed", True) is True and row.get("success", True) is True and not row.get("error"):
        return None
    message = row.get("error") or ("the rollout did not end" if row.get("completed") is False else "the rollout failed")
    return {"kind": "rnow", "message": str(message)}


def _usage(row: JsonObject) -> TokenUsage:
    usage: TokenUsage = {}
    prompt, total = row.get("promptTokens"), row.get("totalTokens")
    completion = row.get("completionTokens", row.get("completion"))
    if isinstance(prompt, int):
        usage["prompt_tokens"] = prompt
        if not isinstance(completion, int) and isinstance(total, int):
            completion = total - prompt
    if isinstance(completion, int):
        usage["completion_tokens"] = completion
    return usage
