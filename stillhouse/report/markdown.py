"""Markdown of cards: tables, code, and escaped text."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; its cells are Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def plain(text: str) -> str:
    """Escape untrusted text to plain text on one line; Markdown would let HTML through."""
    return re.sub(r"([\\`*_{}\[\]<>#&])", r"\\\1", " ".join(_encodable(text).split()))


def code(text: str) -> str:
    fence = _fence(text, 1)
    inner = " ".join(_encodable(text).split())
    return f"{fence} {inner} {fence}" if "`" in inner else f"{fence}{inner}{fence}"


def fenced(language: str, text: str) -> str:
    """Return a block of code; `text` ends with a line break."""
    fence = _fence(text, 3)
    return f"{fence}{language}\n{text}{fence}\n"


def as_yaml(value: Any) -> str:
    """Return `value` as YAML in the order of its keys."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=False)


def _fence(text: str, least: int) -> str:
    """Return backticks that `text` cannot close."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
