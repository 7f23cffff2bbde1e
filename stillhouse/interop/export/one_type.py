"""One type for each column of JSON lines: Arrow, and so pandas and `datasets`, refuse a file of mixed ones."""

import json
from collections.abc import Iterable, Set
from typing import Any, Final

import pyarrow as pa

from stillhouse.types import JsonObject

_TOOLS: Final = "tools"


def mixed_columns(lines: Iterable[JsonObject]) -> frozenset[str]:
    """Return `tools` and the keys of `metadata` whose values no single type of Arrow holds."""
    types: dict[str, pa.Schema] = {}
    mixed: set[str] = set()
    for line in lines:
        for key, value in {**line["metadata"], _TOOLS: line.get(_TOOLS)}.items():
            try:
                schema = pa.schema([(key, pa.array([value]).type)])
                if types.setdefault(key, schema) != schema:
                    types[key] = pa.unify_schemas([types[key], schema], promote_options="permissive")
            except (pa.ArrowException, OverflowError):
                mixed.add(key)
    return frozenset(mixed)


def with_text(line: JsonObject, columns: Set[str]) -> JsonObject:
    """Return the line with the values of `columns` as text: JSON where they were none."""
    metadata = {key: _text(value) if key in columns else value for key, value in line["metadata"].items()}
    tools = {_TOOLS: _text(line[_TOOLS])} if _TOOLS in line and _TOOLS in columns else {}
    return {**line, "metadata": metadata, **tools}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)
