"""No setting is ignored: what a config can say is read behind the config, or by its own methods."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from stillhouse.config import DistillConfig

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "stillhouse" / "config"
READ_IN_THE_CONFIG = {
    "judge_api_key_env": "ModelRole.key_setting",
}
"""Fields that a method of the config reads for others."""


def sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield section
    for field in section.model_fields.values():
        pending: list[Any] = [field.annotation]
        while pending:
            kind = pending.pop()
            pending += get_args(kind)
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from sections(kind)


def names_read() -> set[str]:
    """Attributes that the source behind the config reads, and words that name them, as filters do."""
    names = set()
    for path in (path for folder in ("stillhouse", "tasks", "flows") for path in (ROOT / folder).rglob("*.py")):
        if path.is_relative_to(CONFIG):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return names


@pytest.fixture(scope="module")
def read() -> set[str]:
    return names_read()


@pytest.mark.parametrize("section", list(dict.fromkeys(sections(DistillConfig))), ids=lambda section: section.__name__)
def test_every_field_is_read(section: type[BaseModel], read: set[str]) -> None:
    assert not section.model_fields.keys() - read - READ_IN_THE_CONFIG.keys()
