"""The code in an answer."""

import ast
import re
import textwrap
from typing import Final

_FENCED: Final = re.compile(
    r"^[ \t]*(?P<fence>```+|~~~+)[ \t]*(?P<language>[\w+.-]*)[^\n]*\n(?P<code>.*?)(?:^[ \t]*(?P=fence)[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_PYTHON: Final = frozenset({"python", "python3", "py", "py3"})


def python_code(answer: str, defining: str | None) -> str | None:
    """The last fenced block of Python, or the whole answer if that is Python; None without either.

    Args:
        answer: the final answer.
        defining: a name that the code under test must define: the last block that does comes before later ones, which
            often show how it is used.
    """
    blocks = [
        textwrap.dedent(found["code"])
        for found in _FENCED.finditer(answer)
        if found["language"].lower() in _PYTHON or not found["language"]
    ]
    if defining:
        definition = re.compile(
            rf"^\s*(?:async\s+def|def|class)\s+{re.escape(defining)}\b|^{re.escape(defining)}\s*=", re.M
        )
        blocks = [code for code in blocks if definition.search(code)] or blocks
    if blocks:
        return blocks[-1]
    return answer if _is_python(answer) else None


def _is_python(text: str) -> bool:
    try:
        return bool(ast.parse(text).body)
    # Deep nesting ends the parser in either of the latter two.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
