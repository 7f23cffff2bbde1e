"""Converts a trajectory to a row of a dataset.

Arguments of tool calls become objects, as chat templates and trainers expect; the column `arguments` keeps them as the
model wrote them.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import orjson

from stillhouse.chat.content import calls_of
from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.dataset.schema import CANDIDATE_COLUMNS, JSON_COLUMNS, JSON_LIST_COLUMNS, LABEL_COLUMNS
from stillhouse.dataset.totals import sampled_part, totals_of
from stillhouse.store import exact_json
from stillhouse.types import JsonObject, Message, PromptMetadata, Trajectory

_LABELS: Final = frozenset(column.name for column in LABEL_COLUMNS)


def candidate_row(
    trajectory: Trajectory, metadata: PromptMetadata | None, labels: Mapping[str, Any], sampling: str | None
) -> JsonObject:
    """Return the values of `CANDIDATE_COLUMNS` in their order, JSON columns as JSON text.

    `labels` are by column name, JSON columns as objects; missing columns become null. Raises KeyError if `labels` has a
    column that is no label.
    """
    if unknown := labels.keys() - _LABELS:
        raise KeyError(f"no label columns: {', '.join(sorted(unknown))}")
    row = {
        **asdict(totals_of(trajectory)),
        "id": trajectory.rollout_key,
        "prompt_id": trajectory.prompt_id,
        "sample_index": trajectory.sample_index,
        "messages": [_with_objects(message) for message in trajectory.messages],
        "tools": trajectory.tools,
        "arguments": [
            _arguments_text(call) for message in trajectory.messages for call in message.get("tool_calls") or ()
        ],
        "metadata": metadata.metadata if metadata else {},
        "expected_answer": metadata.expected_answer if metadata else None,
        "tag": metadata.tag if metadata else None,
        "teacher": trajectory.model,
        "sampling": sampling,
        "request_ids": [turn.request_id for turn in trajectory.turns if turn.request_id is not None],
        "turns": len(trajectory.turns),
        "tool_names": [call.name or None for message in sampled_part(trajectory) for call in calls_of(message)],
        "stop_reason": trajectory.stop_reason.value,
        "error": trajectory.error,
        **labels,
    }
    for name, value in row.items():
        if value is not None and name in JSON_LIST_COLUMNS:
            row[name] = [_json(item) for item in value]
        elif value is not None and name in JSON_COLUMNS:
            row[name] = _json(value)
    return {column.name: row.get(column.name) for column in CANDIDATE_COLUMNS}


def _with_objects(message: Message) -> JsonObject:
    calls: Any = message.get("tool_calls")
    kept: JsonObject = {key: value for key, value in message.items() if key != "sent_back"}
    return {**kept, "tool_calls": [_with_object(call) for call in calls]} if calls else kept


def _with_object(call: JsonObject) -> JsonObject:
    """Return the call with its arguments parsed, if they are a JSON object."""
    arguments = _arguments_text(call)
    if arguments is None or call["function"].get("name") == MALFORMED_CALL:
        return call
    return {**call, "function": {**call["function"], "arguments": _object(arguments)}}


def _arguments_text(call: Any) -> str | None:
    """Return the arguments; None if the endpoint wrote none, or not as text."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return arguments if isinstance(arguments, str) else None


def _object(arguments: str) -> JsonObject | str:
    """Return the parsed object; the text itself if it is none, or would not survive a JSON round trip."""
    try:
        value = json.loads(arguments)
        # Python's parser accepts NaN, 1e999, integers beyond 64 bits and lone surrogates, which orjson would write as
        # null or refuse.
        is_exact = isinstance(value, dict) and orjson.loads(orjson.dumps(value)) == value
    except (ValueError, TypeError, RecursionError):
        return arguments
    return value if is_exact else arguments


def _json(value: Any) -> str:
    return exact_json.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
