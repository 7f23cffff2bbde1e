"""The page of models: what it shows of the results that tests write."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

HOOKS = Path(__file__).resolve().parents[2] / "docs" / "hooks"


@pytest.fixture(scope="module")
def models() -> Iterator[Any]:
    """The module that makes the tables."""
    sys.path.insert(0, str(HOOKS))
    import models

    yield models
    sys.path.remove(str(HOOKS))


def test_every_template_has_a_row_and_every_refusal_a_reason(models: Any) -> None:
    names = [entry["template"] for entry in yaml.safe_load(models.TEMPLATES.read_text())]
    rows = [row.strip("| ").split(" | ") for row in models.tables()["models templates"].splitlines()[2:]]
    assert [row[0].replace("\\_", "_") for row in rows] == names
    assert len(names) == 70
    for row in rows:
        assert {"yes", "no", "left out", "not taken"} >= {cell for cell in row[1:6] if not re.match("with `", cell)}
        assert len(row) == 8 or "no" not in row[1:6]


def test_thinking_is_named_where_it_makes_a_template_learn_reasoning(models: Any) -> None:
    rows = {row.split(" | ")[0].strip("| "): row for row in models.tables()["models templates"].splitlines()}
    assert "with `enable_thinking: true`" in rows["google-gemma-4-31B-it"]
    assert "with `reasoning_effort: high`" in rows["tencent-Hy3"]
    assert "with `" not in rows["Qwen-Qwen3-0.6B"]
