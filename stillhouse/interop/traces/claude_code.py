"""Sessions of Claude Code: `~/.claude/projects/PROJECT/SESSION.jsonl`, and files of its subagents.

The form is not published; this is what versions 1.0 to 2.1 write. Each line is an event with `uuid` and `parentUuid`,
which may name a line that is not there. One message of the model is several lines with one `message.id`, of a block
each or growing. A compaction (`compact_boundary`, `isCompactSummary`) begins a new history.
"""

from functools import partial
from typing import Any, Final

from stillhouse.interop.source_record import SourceRecord, Unmapped
from stillhouse.interop.traces.parts import read_message
from stillhouse.interop.traces.steps import Step, gather_sessions, interrupt, record_of
from stillhouse.types import JsonObject

_ABANDONED: Final = "a turn that the user went back from: left out"
_API_ERROR: Final = "an error of the API in place of a turn: left out"
_ATTACHMENT: Final = "an attachment: what the model read of it is not in the log"
_INTERRUPTION: Final = "[Request interrupted by user"


def read(row: JsonObject) -> SourceRecord:
    """Read a history: a session, what follows a compaction, or a subagent's; see `ReadRow`."""
    first, unmapped = row["lines"][0], list[Unmapped]()
    steps: list[Step] = []
    for event in _messages(row["lines"], unmapped):
        message, place = event["message"], event["place"]
        said = read_message(message, place, unmapped)
        if any(_INTERRUPTION in str(one["content"]) for one in said if one["role"] == "user"):
            interrupt(steps, (_INTERRUPTION,), is_of_calls="for tool use" in str(said[-1]["content"]))
        steps += [Step(one, place, None, message.get("model")) for one in said]
    agent = {"subagent": first.get("agentId", True)} if first.get("isSidechain") else {}
    return record_of(steps, row["known"], unmapped, metadata={"session": first.get("sessionId"), **agent})


def _histories(events: list[JsonObject]) -> list[list[JsonObject]]:
    """Return the events of each history that has messages, in order; those that the user went back from are marked."""
    histories: list[list[JsonObject]] = []
    owners: dict[Any, list[JsonObject]] = {}
    last: dict[Any, list[JsonObject]] = {}
    for event in events:
        uuid, parent = event.get("uuid"), event.get("parentUuid")
        agent = event.get("isSidechain"), event.get("agentId")
        if uuid is None or uuid in owners:
            continue
        # Subagents of older versions run side by side in one file.
        history = (agent[0] and owners.get(parent)) or last.get(agent)
        if parent is None or not history or (_is_compaction(event) and not _is_compaction(history[-1])):
            history = []
            histories.append(history)
        elif event.get("type") == "user" and not any("tool_use_id" in part for part in _parts(event)):
            after = next((at for at, one in enumerate(history) if one["uuid"] == parent), len(history)) + 1
            if any(one["type"] == "assistant" for one in history[after:]) and not event.get("isMeta"):
                history[after:] = [{**one, "type": "abandoned", "was": one["type"]} for one in history[after:]]
        history.append(event)
        owners[uuid] = last[agent] = history
    return [one for one in histories if any("message" in event for event in one)]


def _is_compaction(event: JsonObject) -> bool:
    return event.get("subtype") == "compact_boundary" or event.get("isCompactSummary") is True


def _messages(events: list[JsonObject], unmapped: list[Unmapped]) -> list[JsonObject]:
    """Return the events with messages, those of one `message.id` as one."""
    merged: dict[str, JsonObject] = {}
    for event in events:
        kind, place, message = event["type"], event["place"], event.get("message", {})
        key = message.get("id") or event["uuid"]
        if event.get("isApiErrorMessage") or message.get("model") == "<synthetic>":
            unmapped.append(Unmapped(_API_ERROR, "messages", place))
        elif kind == "attachment" or event.get("was") == "assistant":
            unmapped.append(Unmapped(_ATTACHMENT if kind == "attachment" else _ABANDONED, kind, place))
        elif kind in ("user", "assistant"):
            blocks = _grown(_parts(merged[key]), _parts(event)) if key in merged else _parts(event)
            merged[key] = {"place": place, **merged.get(key, {}), "message": {**message, "content": blocks}}
    return list(merged.values())


def _parts(event: JsonObject) -> list[JsonObject]:
    content = event["message"]["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _grown(blocks: list[JsonObject], later: list[JsonObject]) -> list[JsonObject]:
    """Return the blocks of a message and those of a later line, which may repeat or continue the former."""
    for block in later:
        kind = block["type"]
        same = (one for one in blocks if (one["type"], one.get("id")) == (kind, block.get("id")))
        begun = next((one for one in same if str(block.get(kind)).startswith(str(one.get(kind)))), None)
        blocks = [*(one for one in blocks if one is not begun), block]
    return blocks


gather: Final = partial(gather_sessions, histories_of=_histories)
