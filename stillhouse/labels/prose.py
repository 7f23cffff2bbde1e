"""The prose of a text: without its code.

Code blocks follow the fences of CommonMark 0.31, section 4.5, at any indentation, since models indent them in lists.
"""

import re
from typing import Final, NamedTuple

_FENCE: Final = re.compile(r"[ \t>]*(?:[-*+] +|\d+[.)] +)?(`{3,}|~{3,})([^\n]*)")
_CODE_SPAN: Final = re.compile(r"(?<!`)(`{1,2})(?!`)[^`\n]+\1(?!`)")


class Prose(NamedTuple):
    """A text in which code is blanked, character for character."""

    text: str
    open_line: int | None
    """Line, from 1, of a code fence that is never closed; the text after it is not blanked."""


def without_code(text: str) -> Prose:
    """Return `text` with spaces in place of fenced blocks and code between backticks."""
    if "`" not in text and "~~~" not in text:
        return Prose(text, None)
    lines = text.split("\n")
    opened: tuple[str, int] | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        mark, rest = fence.groups()
        if opened is None:
            # "```x```" on one line is inline code.
            opened = None if "`" in rest else (mark, number)
        elif mark.startswith(opened[0]) and not rest.strip():
            for inside in range(opened[1], number + 1):
                lines[inside] = " " * len(lines[inside])
            opened = None
    spans_blank = _CODE_SPAN.sub(lambda span: " " * len(span[0]), "\n".join(lines))
    return Prose(spans_blank, None if opened is None else opened[1] + 1)
