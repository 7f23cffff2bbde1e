"""The code of an answer, apart from blocks that show how it is called or what it prints."""

import ast
import builtins
import re
import symtable
import textwrap
import typing
from collections.abc import Iterable, Iterator, Sequence
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
_READS: Final = frozenset({"input", "sys", "stdin", "open", "fileinput", "os"})
_PRINTS: Final = frozenset({"print", "sys", "stdout", "os"})
_PASSIVE: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign,
                   ast.AnnAssign)  # fmt: skip
# Deep nesting raises either of the last two.
_UNREADABLE: Final = (SyntaxError, ValueError, RecursionError, MemoryError)


class _Block(NamedTuple):
    code: str
    defined: frozenset[str]
    """Global names that it assigns, and methods of its class `Solution`."""
    imported: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()
    """Global names that it refers to, builtins included."""
    acts: bool = False
    """Whether it does more than define and import."""


def python_code(answer: str, tested: Iterable[str]) -> str | None:
    """Return the last blocks that define the names `tested`, with those that define what these use in turn.

    Where no block defines any, the answer is a program: the last block that reads input, or else prints. Without a
    fence the whole answer is taken, if it is Python. None: there is no code.
    """
    blocks = [_block(code, is_python) for code, is_python in _fenced(answer)]
    if not blocks:
        with suppress(*_UNREADABLE):
            return answer if ast.parse(answer).body else None
        return None
    chosen: set[int] = set()
    for name in tested:
        if not any(name in blocks[at].defined for at in chosen):
            defining = [at for at, block in enumerate(blocks) if name in block.defined]
            chosen |= _with_needed(blocks, defining[-1]) if defining else set()
    chosen = chosen or _with_needed(blocks, max(range(len(blocks)), key=lambda at: _rank(blocks, at)))
    code = "\n".join(blocks[at].code for at in sorted(chosen))
    known = frozenset().union(*(blocks[at].defined | blocks[at].imported for at in chosen))
    annotations = sorted(frozenset().union(*(blocks[at].used for at in chosen)) & frozenset(typing.__all__) - known)
    # Sites whose tasks come with a signature, such as LeetCode, import these for the answer.
    return f"from typing import {', '.join(annotations)}\n{code}" if annotations else code


def tested_names(tests: str) -> list[str]:
    """Return the names that the source of tests takes from the answer; none if it is no Python."""
    names: list[str] = []
    with suppress(*_UNREADABLE):
        for node in ast.walk(ast.parse(tests)):
            if isinstance(node, ast.ImportFrom) and node.module == SOLUTION:
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == SOLUTION:
                names.append(node.attr)
        read = _block(tests, is_python=True)
        names += sorted(read.used - read.defined - read.imported - set(dir(builtins)))
    return names


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
        scopes = list(_scopes(symtable.symtable(code, FILE, "exec")))
    except _UNREADABLE:
        # It may be the answer nevertheless, which is wrong then.
        used = (_READS | _PRINTS).intersection(re.findall(r"\w+", code) if is_python else ())
        return _Block(code, frozenset(_DEFINITION.findall(code)), used=used, acts=is_python)
    symbols = [symbol for scope in scopes for symbol in scope.get_symbols() if scope is scopes[0] or symbol.is_global()]
    members = [symbol for scope in scopes if scope.get_name() == "Solution" for symbol in scope.get_symbols()]
    return _Block(
        code,
        frozenset(symbol.get_name() for symbol in [*symbols, *members] if symbol.is_assigned()),
        frozenset(symbol.get_name() for symbol in symbols if symbol.is_imported()),
        frozenset(symbol.get_name() for symbol in symbols if symbol.is_referenced()),
        any(not isinstance(node, _PASSIVE) and not _is_constant(node) for node in body),
    )


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _with_needed(blocks: Sequence[_Block], at: int) -> set[int]:
    """Return a block, and the last ones that define or import what it uses and does not define itself, and so on."""
    chosen = {at}
    waiting = [at]
    while waiting:
        known = frozenset(dir(builtins)).union(*(blocks[at].defined | blocks[at].imported for at in chosen))
        for name in sorted(blocks[waiting.pop()].used - known):
            having = [at for at, block in enumerate(blocks) if name in block.defined | block.imported]
            if having and having[-1] not in chosen:
                chosen.add(having[-1])
                waiting.append(having[-1])
    return chosen


def _rank(blocks: Sequence[_Block], at: int) -> tuple[bool, bool, bool, bool, int]:
    """Return how much a block looks like the program: with others, it acts and reads; alone, it is complete."""
    needed = _with_needed(blocks, at)
    used = frozenset().union(*(blocks[n].used for n in needed))
    return blocks[at].acts, bool(used & _READS), len(needed) == 1, bool(used & _PRINTS), at
