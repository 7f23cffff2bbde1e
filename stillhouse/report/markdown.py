"""Markdown of cards and other pages: tables, code, and the words of others that must stay words."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; its cells are Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def plain(text: str) -> str:
    """Text of others as plain text on one line: Markdown would let HTML through."""
    return re.sub(r"([\\`*_{}\[\]<>#&])", r"\\\1", " ".join(_showable(text).split()))


def code(text: str) -> str:
    """Text of others as code on one line."""
    fence = _fence(text, 1)
    inner = " ".join(_showable(text).split())
    return f"{fence} {inner} {fence}" if "`" in inner else f"{fence}{inner}{fence}"


def fenced(language: str, text: str) -> str:
    """A block of code; `text` ends with a line break."""
    fence = _fence(text, 3)
    return f"{fence}{language}\n{text}{fence}\n"


def as_yaml(value: Any) -> str:
    """`value` as YAML in the order of its keys."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=False)


def _fence(text: str, least: int) -> str:
    """Backticks that `text` cannot close."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def _showable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
