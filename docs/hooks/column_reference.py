"""Tables of columns and fields, from the schema by which datasets are written and the types that records have."""

import ast
import inspect
from typing import Final

from stillhouse import types
from stillhouse.dataset import schema

_COLUMNS: Final = {
    "trajectory": schema.TRAJECTORY_COLUMNS,
    "label": schema.LABEL_COLUMNS,
    "judge": schema.JUDGE_COLUMNS,
    "difficulty": schema.DIFFICULTY_COLUMNS,
    "duplicate": schema.DUPLICATE_COLUMNS,
    "selection": schema.SELECTION_COLUMNS,
    "preference": schema.PREFERENCE_COLUMNS,
}
_RECORDS: Final = (types.Trajectory, types.Turn, types.ErrorRecord)
_WORDS: Final = {
    schema.Kind.TEXT: "text",
    schema.Kind.WHOLE: "whole number",
    schema.Kind.REAL: "number",
    schema.Kind.FLAG: "true or false",
    schema.Kind.TEXTS: "list of texts",
    schema.Kind.JSON: "JSON",
    schema.Kind.JSONS: "list of JSON",
}


def column_tables() -> dict[str, str]:
    """Markdown tables by the names under which the page of columns asks for them."""
    tables = {f"columns {name}": _table_of_columns(columns) for name, columns in _COLUMNS.items()}
    return tables | {f"fields {record.__name__}": _table_of_fields(record) for record in _RECORDS}


def _table_of_columns(columns: tuple[schema.Column, ...]) -> str:
    rows = [f"| `{column.name}` | {_WORDS[column.kind]} | {_cell(column.meaning)} |" for column in columns]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *rows])


def _table_of_fields(record: type) -> str:
    """The fields of a dataclass with the docstrings under them, which only the source holds."""
    body = ast.parse(inspect.getsource(record)).body[0].body  # type: ignore[attr-defined]
    rows = []
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign):
            meaning = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
            kind = _cell(ast.unparse(statement.annotation))
            rows.append(f"| `{ast.unparse(statement.target)}` | `{kind}` | {_cell(meaning)} |")
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
