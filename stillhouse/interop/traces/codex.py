"""Sessions of Codex CLI, a file each: `~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl`.

Lines are of `RolloutItem`, items of `ResponseItem`: codex-rs/protocol/src/protocol.rs and models.rs of
https://github.com/openai/codex. A file of a session that was forked from another begins with a copy of its lines.
"""

from functools import partial
from itertools import groupby
from typing import Final

from stillhouse.interop.source_record import SourceRecord, Unmapped
from stillhouse.interop.traces.parts import read_message, text_in
from stillhouse.interop.traces.steps import Step, gather_sessions, interrupt, record_of
from stillhouse.types import JsonObject

_KEPT: Final = "a turn that a compaction kept: context, not learnt again"
_BY_CODEX: Final = ("<", "# AGENTS.md")
"""How texts begin that stand under the user's role and are Codex's."""


def read(row: JsonObject) -> SourceRecord:
    """Read a session, whose history begins anew with each compaction; see `ReadRow`."""
    first = {line["type"]: line["payload"] for line in reversed(row["lines"])}
    meta, model = first.get("session_meta", {}), first.get("turn_context", {}).get("model")
    histories: list[list[JsonObject]] = [[]]
    for line in row["lines"]:
        kind, item, place = line["type"], line["payload"], line["place"]
        if kind == "compacted":
            kept = item.get("replacement_history") or [{"type": "message", "role": "user", "content": item["message"]}]
            histories.append([{**one, "place": place, "unlearnt": _KEPT} for one in kept])
        elif kind == "response_item" or item.get("type") == "turn_aborted":
            histories[-1].append({**item, "place": place})
    base = text_in(meta.get("base_instructions") or meta.get("instructions"))
    system = [Step({"role": "system", "content": base}, None)] if base else []
    record, about = SourceRecord(), {"metadata": {"session": meta.get("id")}}
    for history in histories:
        steps = system + [step._replace(model=model) for step in _steps(history, record.unmapped)]
        record.conversations += record_of(steps, row["known"], record.unmapped, **about).conversations
    return record


def _steps(history: list[JsonObject], unmapped: list[Unmapped]) -> list[Step]:
    steps: list[Step] = []
    for role, group in groupby(history, _role):
        items = list(group)
        if role == "turn_aborted":
            results = [str(step.message["content"]) for step in steps if step.role == "tool"]
            interrupt(steps, _BY_CODEX, is_of_calls=bool(results) and results[-1].startswith("aborted"))
            continue
        said = [item["content"] if item["type"] == "message" else [item] for item in items]
        message = {"role": role, "parts": [part for one in said for part in ([one] if isinstance(one, str) else one)]}
        place, unlearnt = items[0]["place"], items[0].get("unlearnt")
        steps += [Step(one, place, unlearnt) for one in read_message(message, place, unmapped)]
    return steps


def _role(item: JsonObject) -> str:
    kind, role = item["type"], str(item.get("role", "assistant"))
    role = "tool" if kind.endswith("_output") else "system" if role == "developer" else role
    return kind if kind == "turn_aborted" else role


gather: Final = partial(gather_sessions, histories_of=lambda lines: [[one for one in lines if "payload" in one]])
