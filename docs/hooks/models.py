"""Tables of the page on models: what was measured with each family and each chat template."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import yaml

from stillhouse.report.markdown import table
from stillhouse.types import JsonObject

FAMILIES: Final = Path(__file__).with_name("models_families.yaml")
TEMPLATES: Final = Path(__file__).with_name("models_templates.yaml")
_COLUMNS: Final = {
    "text": ("plain", "two turns", "system", "white space"),
    "tools": ("tool", "two rounds of tools", "tool, then a question"),
    "several calls": ("two calls",),
    "text beside calls": ("text and tool",),
    "reasoning": ("reasoning", "reasoning in two turns"),
}
"""Kinds of conversations by the column that tells what becomes of them."""
_LEFT_OUT: Final = "without its reasoning"
_NOT_TAKEN: Final = "not taken"


def tables() -> dict[str, str]:
    """Markdown tables by the names under which the page asks for them."""
    families = _entries(FAMILIES)
    taken = [entry for entry in families if entry["rows"] != "refused"]
    refused = [entry for entry in families if entry["rows"] == "refused"]
    reasons = dict.fromkeys(entry["reason"] for entry in refused)
    return {
        "models families": _table(taken, _family),
        "models refused": _table([_refusal(reason, refused) for reason in reasons], dict),
        "models templates": _table(_entries(TEMPLATES), _template),
    }


def _entries(path: Path) -> list[JsonObject]:
    entries: list[JsonObject] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return entries


def _table(entries: Sequence[JsonObject], row_of: Callable[[JsonObject], dict[str, str]]) -> str:
    rows = [row_of(entry) for entry in entries]
    return table(list(rows[0]), (row.values() for row in rows))


def _refusal(reason: str, refused: Sequence[JsonObject]) -> dict[str, str]:
    families = ", ".join(f"`{entry['family']}`" for entry in refused if entry["reason"] == reason)
    return {"refused because": reason, "families": families}


def _family(entry: JsonObject) -> dict[str, str]:
    reason = f": {entry['reason']}" if "reason" in entry else ""
    return {
        "family": f"`{entry['family']}`",
        "rows": f"{entry['rows']}{reason}",
        "adapters on": ", ".join(entry["adapters"]),
        "with `experts` also on": ", ".join(entry["experts"]),
    }


def _template(entry: JsonObject) -> dict[str, str]:
    cells = {column: _cell(entry, kinds) for column, kinds in _COLUMNS.items()}
    kinds = [kind for column in _COLUMNS.values() for kind in column]
    outcomes = dict.fromkeys(entry["conversations"].get(kind) for kind in kinds)
    reasons = [outcome for outcome in outcomes if outcome not in (None, _LEFT_OUT, _NOT_TAKEN)]
    cells["calls read"] = {True: "yes", False: "no", None: ""}[entry.get("reads_calls")]
    return {"template": entry["template"].replace("_", "\\_"), **cells, "refused because": "; ".join(reasons)}


def _cell(entry: JsonObject, kinds: Sequence[str]) -> str:
    """What becomes of conversations of these kinds; those that the template itself refuses count only alone."""
    usual, thinking = (
        _worst([outcomes.get(kind, "learnt") for kind in kinds])
        for outcomes in (entry["conversations"], _with_thinking(entry))
    )
    return f"with `{entry['thinking']}`" if thinking == "yes" != usual else usual


def _with_thinking(entry: JsonObject) -> JsonObject:
    return entry["conversations"] | entry.get("with_thinking", {})


def _worst(outcomes: Sequence[str]) -> str:
    taken = [outcome for outcome in outcomes if outcome != _NOT_TAKEN]
    if not taken:
        return "not taken"
    if set(taken) == {"learnt"}:
        return "yes"
    return "left out" if set(taken) <= {"learnt", _LEFT_OUT} else "no"
