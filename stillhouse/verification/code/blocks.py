"""The code of an answer, apart from blocks that show how it is called or what it prints."""

import ast
import builtins
import re
import symtable
import textwrap
import typing
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from stillhouse.verification.code.objects import FILE, SOLUTION

_FENCED: Final = re.compile(
    r"^[ \t]*(?P<fence>```+|~~~+)[ \t]*(?P<language>[\w+.-]*)[^\n]*(?:\n|\Z)(?P<code>.*?)"
    r"(?:^[ \t]*(?P=fence)[ \t]*$(?P<closed>)|\Z)",
    re.MULTILINE | re.DOTALL,
)
_PYTHON: Final = frozenset({"python", "python3", "py", "py3"})
_DEFINITION: Final = re.compile(r"^\s*(?:async\s+def|def|class)\s+(\w+)", re.MULTILINE)
_PROMPT: Final = ">>>"
_READS: Final = re.compile(r"\b(?:input|sys|stdin|open|fileinput|os)\b")
_PRINTS: Final = re.compile(r"\b(?:print|stdout)\b")
_PASSIVE: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign,
                   ast.AnnAssign)  # fmt: skip
# Deep nesting raises either of the last two.
_UNREADABLE: Final = (SyntaxError, ValueError, RecursionError, MemoryError)


class _Block(NamedTuple):
    code: str
    acts: bool | None
    """True where it does more than define and import; None if it may be no Python."""
    defined: frozenset[str]
    """Global names that it assigns, and methods of its class `Solution`."""
    imported: frozenset[str] = frozenset()


def python_code(answer: str, tested: Collection[str]) -> str | None:
    """Return the last blocks that define the names `tested`, with those that only define what these mention in turn.

    Where no block defines any, the answer is a program: the last block that reads input, else prints, else acts,
    instead. Without a fence the whole answer is taken, if it is Python. None: there is no code.
    """
    blocks = [_block(code, is_python) for code, is_python in _fenced(answer)]
    if not blocks:
        with suppress(*_UNREADABLE):
            return answer if ast.parse(answer).body else None
        return None
    last = {name: at for at, block in enumerate(blocks) for name in block.defined}
    chosen = {last[name] for name in tested if name in last}
    if not chosen:
        chosen = {max(range(len(blocks)), key=lambda at: (*_likeness(blocks[at]), at))}
    while True:
        code = "\n".join(blocks[at].code for at in sorted(chosen))
        known = frozenset[str]().union(*(blocks[at].defined | blocks[at].imported for at in chosen))
        missing = {*re.findall(r"\w+", code)} - known
        helping = {
            at for at, block in enumerate(blocks) if block.acts is False and missing & (block.defined | block.imported)
        }
        if not helping:
            break
        chosen |= helping
    annotations = sorted(missing & {*typing.__all__})
    # Sites whose tasks come with a signature, such as LeetCode, import these for the answer.
    return f"from typing import {', '.join(annotations)}\n{code}" if annotations else code


def tested_names(tests: str) -> list[str]:
    """Return the names that the source of tests takes from the answer; none if it is no Python."""
    with suppress(*_UNREADABLE):
        nodes = list(ast.walk(ast.parse(tests)))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | {*dir(builtins)}
        # Definitions, imports, and arguments.
        bound |= {str(getattr(node, "name", getattr(node, "arg", None))) for node in nodes}
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == SOLUTION]
        members = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == SOLUTION]
        taken = [alias.name for node in imports for alias in node.names] + [node.attr for node in members]
        return taken + sorted({node.id for node in names} - bound)
    return []


def _fenced(answer: str) -> Iterator[tuple[str, bool]]:
    """Yield the code of each block that may be Python, and whether its fence says so; sessions of a shell are none."""
    end = 0
    for block in _FENCED.finditer(answer):
        language, code = block["language"].lower(), textwrap.dedent(block["code"])
        if not language and block["closed"] is None:
            # It closes a block that the prompt has opened.
            yield answer[end : block.start()], False
        elif (language in _PYTHON or not language) and not code.lstrip().startswith(_PROMPT):
            yield code, bool(language)
        end = block.end()


def _block(code: str, is_python: bool) -> _Block:
    try:
        body = ast.parse(code).body
        module = symtable.symtable(code, FILE, "exec")
    except _UNREADABLE:
        # It may be the answer nevertheless, which is wrong then.
        return _Block(code, is_python or None, frozenset(_DEFINITION.findall(code)))
    scopes = [module, *(scope for scope in module.get_children() if scope.get_name() == "Solution")]
    symbols = [symbol for scope in scopes for symbol in scope.get_symbols()]
    return _Block(
        code,
        not all(map(_is_passive, body)),
        frozenset(symbol.get_name() for symbol in symbols if symbol.is_assigned()),
        frozenset(symbol.get_name() for symbol in symbols if symbol.is_imported()),
    )


def _is_passive(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    # An annotation alone, as `Output: four`, is no definition.
    return isinstance(node, _PASSIVE) and getattr(node, "value", node) is not None


def _likeness(block: _Block) -> tuple[bool, bool, bool]:
    """Return how much a block looks like a program: it acts, reads, and prints."""
    return bool(block.acts), bool(block.acts and _READS.search(block.code)), bool(_PRINTS.search(block.code))
