"""The page of metrics and what runs log name the same figures; see also tests/flows/test_metrics_page.py."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MADE_OF_PARTS = re.compile(
    r"_(rows|s|p|difference)$|^validation_|_by_tag/NAME$|^(num|usd|exact|near|candidate|mean|p95|max)_"
)
"""Names that the code puts together; a run shows that it does."""


def test_every_metric_of_the_page_is_one_of_the_code(documented_metrics: list[str]) -> None:
    assert len(documented_metrics) > 100
    known = set(re.findall(r"[a-z][a-z0-9_]+", " ".join(literals())))
    unknown = [
        name for name in documented_metrics if name.split("/")[0] not in known and not MADE_OF_PARTS.search(name)
    ]
    assert not unknown


def literals() -> list[str]:
    """Return every text in the packages but docstrings, which promise and do not log."""
    texts = []
    for path in (path for package in ("stillhouse", "tasks") for path in (ROOT / package).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        constants = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings)
        texts += [node.value for node in constants if isinstance(node.value, str)]
    return texts
