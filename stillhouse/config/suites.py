"""Suites: tasks of inspect_ai, as `evaluation.suites` names them."""

import re
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator

SUITE_PREFIX: Final = "suite "
"""Of a suite's figures, before its name."""


class Suite(NamedTuple):
    file: str | None
    """Of the user, with the task; None for a task that a package registers."""
    name: str


def parse_suite(text: str) -> Suite:
    """Return the file and the task that a text of the config names; raise ValueError if it names none."""
    if match := re.fullmatch(r"(?:inspect|(.+\.py)):([\w./-]+)", text):
        return Suite(*match.groups())
    raise ValueError(f"{text!r}: expected FILE.py:task, or inspect:NAME such as inspect:inspect_evals/ifeval")


def _are_suites(texts: tuple[str, ...]) -> tuple[str, ...]:
    names = [parse_suite(text).name for text in texts]
    if len(set(names)) < len(names):
        raise ValueError(f"expected each task once, as its figures have its name; saw {', '.join(names)}")
    return texts


Suites = Annotated[tuple[str, ...], AfterValidator(_are_suites)]
