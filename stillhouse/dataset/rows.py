"""A trajectory as a row of a dataset.

Arguments of a tool call become an object, which is what chat templates and trainers take; the column `arguments` keeps
them as the model wrote them.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

from stillhouse.chat.content import calls_of
from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.dataset.schema import CANDIDATE_COLUMNS, JSON_COLUMNS, JSON_LIST_COLUMNS, LABEL_COLUMNS
from stillhouse.dataset.totals import sampled_part, totals_of
from stillhouse.types import JsonObject, Message, PromptMetadata, Trajectory

_LABELS: Final = frozenset(column.name for column in LABEL_COLUMNS)


def candidate_row(
    trajectory: Trajectory, metadata: PromptMetadata | None, labels: Mapping[str, Any], sampling: str | None
) -> JsonObject:
    """The values of `CANDIDATE_COLUMNS` in their order, JSON columns as JSON text.

    Args:
        trajectory: Finished or failed.
        metadata: What came with its prompt, if anything.
        labels: Values by name of column, JSON columns as objects; columns that are not there become null.
        sampling: Hash of teacher, sampling and tools, where it is known.

    Raises:
        KeyError: `labels` names a column that is no label.
    """
    if unknown := labels.keys() - _LABELS:
        raise KeyError(f"no label columns: {', '.join(sorted(unknown))}")
    totals = totals_of(trajectory)
    row = {
        "id": trajectory.rollout_key,
        "prompt_id": trajectory.prompt_id,
        "sample_index": trajectory.sample_index,
        "messages": [_with_objects(message) for message in trajectory.messages],
        "tools": trajectory.tools,
        "arguments": [_written(call) for message in trajectory.messages for call in message.get("tool_calls") or ()],
        "metadata": metadata.metadata if metadata else {},
        "expected_answer": metadata.expected_answer if metadata else None,
        "tag": metadata.tag if metadata else None,
        "teacher": trajectory.model,
        "sampling": sampling,
        "providers": totals.providers,
        "request_ids": [turn.request_id for turn in trajectory.turns if turn.request_id is not None],
        "turns": len(trajectory.turns),
        "num_tool_calls": totals.num_tool_calls,
        "tool_names": [call.name or None for message in sampled_part(trajectory) for call in calls_of(message)],
        "num_tool_errors": totals.num_tool_errors,
        "stop_reason": trajectory.stop_reason.value,
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "reasoning_tokens": totals.reasoning_tokens,
        "cached_tokens": totals.cached_tokens,
        "cost_usd": totals.cost_usd,
        "latency_s": totals.latency_s,
        "error": trajectory.error,
        **labels,
    }
    return {column.name: _encoded(row.get(column.name), column.name) for column in CANDIDATE_COLUMNS}


def _with_objects(message: Message) -> JsonObject:
    """The message with the arguments of its calls as objects, where they are JSON objects."""
    calls: Any = message.get("tool_calls")
    return {**message, "tool_calls": [_with_object(call) for call in calls]} if calls else dict(message)


def _with_object(call: JsonObject) -> JsonObject:
    written = _written(call)
    if written is None or call["function"].get("name") == MALFORMED_CALL:
        return call
    return {**call, "function": {**call["function"], "arguments": _object(written)}}


def _written(call: Any) -> str | None:
    """The arguments as text; None where an endpoint wrote none, or wrote them as something else."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return arguments if isinstance(arguments, str) else None


def _object(arguments: str) -> JsonObject | str:
    """The object that `arguments` spells; the text itself where JSON's reader and writer would not give it back."""
    try:
        value = json.loads(arguments)
        # NaN, 1e999, integers beyond 64 bits and lone surrogates pass Python's reader, and would come back as null or
        # not at all.
        is_exact = isinstance(value, dict) and orjson.loads(orjson.dumps(value)) == value
    except (ValueError, TypeError, RecursionError):
        return arguments
    return value if is_exact else arguments


def _encoded(value: Any, name: str) -> Any:
    if value is None:
        return None
    if name in JSON_LIST_COLUMNS:
        return [_json(item) for item in value]
    return _json(value) if name in JSON_COLUMNS else value


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
