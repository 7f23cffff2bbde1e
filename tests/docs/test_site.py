"""The site that `make docs` builds: whole, without a network, and in step with the code."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import typer
from pydantic import BaseModel

from flows.cli import app
from stillhouse.config import DistillConfig
from stillhouse.dataset.schema import COLUMNS
from stillhouse.types import StopReason

_LOADED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=[\"'](?P<address>[^\"']+)")


def keys_of(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield every key of the config, by the path that the reference gives it."""
    for name, field in section.model_fields.items():
        key = f"{path}.{name}" if path else name
        yield key
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys_of(kind, key)


def test_every_key_of_the_config_is_there(site: Path) -> None:
    page, keys = read(site / "reference" / "config.html"), set(keys_of(DistillConfig))
    assert len(keys) > 200
    assert not [key for key in keys if f'id="{key}"' not in page]


def test_every_column_field_and_command_is_there_with_its_meaning(site: Path) -> None:
    page = read(site / "reference" / "columns.html")
    assert all(f"<code>{column.name}</code>" in page and column.meaning for column in COLUMNS)
    assert all(reason.name in page for reason in StopReason)
    commands = read(site / "reference" / "commands.html")
    assert all(f"stillhouse {verb}</code>" in commands for verb in typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = read(path)
        loaded = [found["address"] for found in _LOADED.finditer(text)] + re.findall(r"url\((https?:[^)]+)\)", text)
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], path


def read(path: Path) -> str:
    return unescape(path.read_text(encoding="utf-8"))
