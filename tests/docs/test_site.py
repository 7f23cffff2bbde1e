"""What `make docs` builds: whole, without a network, and in step with the code."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from pydantic import BaseModel

from stillhouse.config import DistillConfig
from stillhouse.dataset.schema import COLUMNS
from stillhouse.types import StopReason

_LOADED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=[\"'](?P<address>[^\"']+)")


def keys_of(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Every field of the config with its help, by the path that the reference gives it."""
    for name, field in section.model_fields.items():
        key = f"{path}.{name}" if path else name
        types = (field.annotation, *getattr(field.annotation, "__args__", ()))
        inner = [kind for kind in types if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if inner:
            yield from keys_of(inner[0], key if inner[0] is field.annotation else f"{key}[]")
        else:
            yield key, field.description or ""


def test_every_field_of_the_config_is_described(site: Path) -> None:
    pages = {path.stem: read(path) for path in (site / "reference" / "config").glob("*.html")}
    keys = dict(keys_of(DistillConfig))
    assert len(keys) > 200
    for key, description in keys.items():
        page = pages[key.split(".")[0]]
        assert f'id="{key}"' in page, key
        assert plain(description.replace("`", "")) in plain(re.sub(r"<[^>]+>", "", page)), key


def test_a_field_has_the_name_that_the_form_gives_it_its_type_and_its_default(site: Path) -> None:
    page = re.sub(r"<[^>]+>", "", read(site / "reference" / "config" / "sft.html"))
    assert "Learning rate · number, above 0 · default 0.0001" in plain(page)


def test_every_section_is_in_the_navigation(site: Path) -> None:
    front = read(site / "index.html")
    assert all(f'href="reference/config/{name}.html"' in front for name in DistillConfig.model_fields)


def test_every_column_is_described(site: Path) -> None:
    page = read(site / "reference" / "columns.html")
    assert all(f"<code>{column.name}</code>" in page for column in COLUMNS)
    assert all(f"<code>{reason}</code>" in page for reason in StopReason)
    assert "<!-- table" not in page


def test_every_column_and_field_has_a_meaning(site: Path) -> None:
    rows = re.findall(r"<tr>(.*?)</tr>", read(site / "reference" / "columns.html"), re.S)
    cells = [re.findall(r"<td>(.*?)</td>", row, re.S) for row in rows]
    assert len(cells) > 80
    assert not [row for row in cells if row and not row[-1].strip()]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = read(path)
        loaded = [found["address"] for found in _LOADED.finditer(text)] + re.findall(r"url\((https?:[^)]+)\)", text)
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], path


def test_sources_and_scripts_of_the_guide_are_not_in_it(site: Path) -> None:
    assert not list(site.rglob("*.py"))
    assert not (site / "pictures").exists()


def read(path: Path) -> str:
    return unescape(path.read_text(encoding="utf-8"))


def plain(text: str) -> str:
    return " ".join(text.split())
