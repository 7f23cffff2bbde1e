"""Tables of columns and fields, from the schema by which datasets are written and the types that records have."""

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from stillhouse import types
from stillhouse.dataset import schema
from stillhouse.report.markdown import table

_COLUMNS: Final = {
    "trajectory": schema.TRAJECTORY_COLUMNS,
    "label": schema.LABEL_COLUMNS,
    "judge": schema.JUDGE_COLUMNS,
    "difficulty": schema.DIFFICULTY_COLUMNS,
    "duplicate": schema.DUPLICATE_COLUMNS,
    "selection": schema.SELECTION_COLUMNS,
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
    tables |= {f"fields {record.__name__}": _table_of_fields(record) for record in _RECORDS}
    return tables | {"values StopReason": _table_of_values(types.StopReason)}


def _table_of_columns(columns: tuple[schema.Column, ...]) -> str:
    rows = [(f"`{column.name}`", _WORDS[column.kind], column.meaning) for column in columns]
    return table(("column", "type", "meaning"), rows)


def _table_of_fields(record: type) -> str:
    """The fields of a dataclass or a typed dictionary, with the docstrings under them."""
    rows = [
        (f"`{ast.unparse(statement.target)}`", f"`{ast.unparse(statement.annotation)}`", meaning)
        for statement, meaning in _described(record)
        if isinstance(statement, ast.AnnAssign)
    ]
    return table(("field", "type", "meaning"), rows)


def _table_of_values(choices: type) -> str:
    """The members of an enumeration of texts, with the docstrings under them."""
    rows = [
        (f"`{ast.literal_eval(statement.value)}`", meaning)
        for statement, meaning in _described(choices)
        if isinstance(statement, ast.Assign)
    ]
    return table(("value", "meaning"), rows)


def _described(kind: type) -> Iterator[tuple[ast.stmt, str]]:
    """The statements of a class, each with the text that follows it, which only the source holds."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    for statement, after in pairwise([*definition.body, ast.Pass()]):
        text = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
        yield statement, " ".join(text.split())
