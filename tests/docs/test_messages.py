"""The messages that the troubleshooting page goes by are those of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import stillhouse.errors
from stillhouse.errors import BudgetReached, FailureBudgetExceeded, QuotaError

ROOT = Path(__file__).resolve().parents[2]
_HEADING = re.compile(r"^### `(?P<message>.+)` \{ #[\w-]+ \}$", re.M)


def test_every_message_is_one_of_the_code(pages: dict[str, str]) -> None:
    messages = _HEADING.findall(pages["docs/troubleshooting.md"])
    assert len(messages) > 25
    known = list(texts_of_the_code())
    invented = "…: the student has left the building"
    unknown = [one for one in [*messages, invented] if not any(stands_in(one, text) for text in known)]
    assert unknown == [invented]


def test_every_code_of_an_error_is_an_address_of_the_page(pages: dict[str, str]) -> None:
    addresses = set(re.findall(r"\{ #([\w-]+) \}", pages["docs/troubleshooting.md"]))
    codes = set(codes_of_the_code())
    assert len(codes) > 25
    assert codes <= addresses


def test_every_message_has_an_address_of_its_own(pages: dict[str, str]) -> None:
    addresses = re.findall(r"\{ #([\w-]+) \}", pages["docs/troubleshooting.md"])
    assert len(set(addresses)) == len(addresses) == len(_HEADING.findall(pages["docs/troubleshooting.md"]))


def stands_in(message: str, text: str) -> bool:
    """Whether the text has what the page shows, in which `…` stands for what differs."""
    place = 0
    for part in message.removeprefix("…: ").split("…"):
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


def texts_of_the_code() -> Iterator[str]:
    """Every text in the packages; what is filled in is left empty."""
    for package in ("stillhouse", "tasks", "flows"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else "" for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def codes_of_the_code() -> Iterator[str]:
    """Every code that an error is raised with, or that its class has."""
    errors = {name: one for name, one in vars(stillhouse.errors).items() if isinstance(one, type)}
    yield from (one.code for one in (QuotaError, BudgetReached, FailureBudgetExceeded))
    for package in ("stillhouse", "tasks", "flows"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in errors:
                    written = [one.value for one in node.keywords if one.arg == "code"]
                    yield from (str(value.value) for value in written if isinstance(value, ast.Constant))
