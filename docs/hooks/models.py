"""Tables of the page on models: what was measured with each family and each chat template."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import yaml

from stillhouse.report.markdown import table
from stillhouse.types import JsonObject

FAMILIES: Final = Path(__file__).with_name("models_families.yaml")
TEMPLATES: Final = Path(__file__).with_name("models_templates.yaml")
_SHOWN: Final = {"learnt": "yes", "not taken": ""}


def tables() -> dict[str, str]:
    """Markdown tables by the names under which the page asks for them."""
    return {"models families": _table(FAMILIES, _family), "models templates": _table(TEMPLATES, _template)}


def _table(path: Path, row_of: Callable[[JsonObject], dict[str, str]]) -> str:
    """One row for each entry of the file; empty where there is no file."""
    rows = [row_of(entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))] if path.exists() else []
    return table(list(rows[0]), (row.values() for row in rows)) if rows else ""


def _family(entry: JsonObject) -> dict[str, str]:
    forward = f"{entry['forward']}: {entry['reason']}" if entry.get("reason") else entry["forward"]
    full = f"refused: {entry['refused']}" if entry.get("refused") else entry["full"]
    adapters = ", ".join(f"`{name}`" for name in entry["adapters"])
    return {
        "family": entry["family"],
        "class": f"`{entry['class']}`",
        "forward": forward,
        "full training": full,
        "adapters on": adapters,
    }


def _template(entry: JsonObject) -> dict[str, str]:
    kinds = entry["conversations"]
    columns = {kind: _SHOWN.get(outcome, "no") for kind, outcome in kinds.items()}
    return {"template": entry["template"], **columns, "refused because": "; ".join(_reasons(kinds))}


def _reasons(kinds: dict[str, str]) -> Iterator[str]:
    return (reason for reason in dict.fromkeys(kinds.values()) if reason not in _SHOWN)
