"""Addresses and commands to copy from a terminal: none is broken inside a path or an address."""

import textwrap
from collections.abc import Iterator, Mapping

from rich.text import Text

_INDENT = "  "


def hint_lines(hints: Mapping[str, str], width: int | None) -> Iterator[Text]:
    """Yield the lines of `hints`, an address or a shell command by its purpose.

    What is longer than the terminal's `width` stands below its purpose, and a command goes on after a backslash, as a
    shell reads it. A width of None breaks nothing.
    """
    label = max(map(len, hints), default=0)
    for purpose, hint in hints.items():
        if width is None or label + 1 + len(hint) <= width:
            yield Text.assemble((f"{purpose:<{label}}", "bold"), f" {hint}")
            continue
        yield Text(purpose, "bold")
        # A space within quotes is none to break at.
        parts = [hint] if "'" in hint else _wrapped(hint, width - len(_INDENT) - len(" \\"))
        yield Text(_INDENT + f" \\\n{_INDENT}".join(parts))


def _wrapped(hint: str, width: int) -> list[str]:
    return textwrap.wrap(hint, width, break_long_words=False, break_on_hyphens=False)
