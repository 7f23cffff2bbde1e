"""Docstrings have one form: Google's, where what follows an argument's colon begins in lower case."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"Jinja", "Parquet", "Prefect", "Python", "Chromium", "Ray", "Hugging", "None", "True", "False"}


def test_the_description_of_an_argument_begins_in_lower_case() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {entry}"
        for top in ("flows", "tasks", "stillhouse", "benchmarks")
        for path in sorted((ROOT / top).rglob("*.py"))
        for entry in arguments_in(ast.parse(path.read_text(encoding="utf-8")))
        if (word := re.search(r": ([A-Z][a-z]*)\b", entry)) and word[1] not in NAMES and len(word[1]) > 1
    ]
    assert not wrong, "\n".join(wrong)


def arguments_in(module: ast.Module) -> Iterator[str]:
    """Yield the first line of each entry under `Args:`, of every docstring of the module."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            section = re.search(r"^Args:\n((?:    .*\n|\n)+)", (ast.get_docstring(node) or "") + "\n", re.M)
            yield from re.findall(r"^    (\*{0,2}\w+: \S+)", section[1], re.M) if section else ()
