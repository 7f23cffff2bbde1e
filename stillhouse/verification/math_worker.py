"""The worker process that compares formulas: read by the parser of math-verify, compared exactly by sympy."""

import logging
import re
from decimal import Decimal
from itertools import permutations
from typing import Any, Final, NamedTuple

from stillhouse.processes.worker_pool import limit_memory_growth, serve_requests
from stillhouse.types import JsonObject
from stillhouse.verification.numbers import NUMBER, Number, has_decimals, number_of, plain_numbers, same_number

_MAX_MEMORY_BYTES: Final = 1 << 30
_MAX_CHARS: Final = 2000
"""Longest formula read; the parser takes seconds for longer ones."""
_DIGITS: Final = 60
"""Digits to which two constants are computed; those that differ are different."""
_FUNCTIONS: Final = re.compile(
    r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sin|cos|tan|log|ln|exp|pi|infty|cdot|sqrt)(?![A-Za-z])"
)
_ROOT: Final = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_LOOKS: Final = re.compile(r"\\(?:left|right|[bB]ig[glr]*|displaystyle)(?![a-z])|\\[,;:! ]|\\(?=%)")
_NAMED: Final = re.compile(r"([A-Za-z](?:_\w)?(?:\([a-z]\))?)\s*(?:=(?!=)|\\in(?![a-z]))\s*")
_DOTS: Final = re.compile(r"\\[lc]?dots|\.\.\.|\u2026")
# What the parser misreads without a word: bases, digits side by side, letters of a word as a product, degrees.
_MISREAD: Final = re.compile(
    r"\d\s*_|\d\s+\d|(?<![\\A-Za-z])[A-Za-z]{4,}|\d[eE][-+]?\d|\\(?:circ|text|mathrm|mod|pmod|equiv|ldots|approx)(?![a-z])|[?'\u00b0]"
)
_OPEN: Final = {"(": ")", "[": "]", "\u2983": "\u2984"}


class NotUnderstood(Exception):
    """A formula, or a comparison, that is not understood."""


class _Collection(NamedTuple):
    brackets: str
    """As written: `()`, `[)`; `{}` for a set, and for a list without brackets, which has no order either."""
    elements: tuple[Any, ...]


_ELLIPSIS: Final = _Collection("...", ())


def compare(request: JsonObject) -> JsonObject:
    """Return whether `answer` equals `expected`; None and a note if that is not understood."""
    expected, answer = (_clean(request[key]) for key in ("expected", "answer"))
    named = [_NAMED.match(text) for text in (expected, answer)]
    # The name of what is asked for is often left out: of `x = 5`, not of `x = y = 5` or where the other is an equation.
    one = max(expected.count("="), answer.count("=")) <= 1
    if one and (named[0] is None) <= ("=" not in expected) and (named[1] is None) <= ("=" not in answer):
        if named[0] is None or named[1] is None or named[0][1] == named[1][1]:
            expected, answer = (re.sub(_NAMED, "", text, count=1) for text in (expected, answer))
    try:
        wanted = _read(expected)
    except NotUnderstood as error:
        return {"verified": None, "note": f"the expected answer cannot be read as mathematics: {error}"}
    try:
        return {"verified": _same(_read(answer), wanted), "note": None}
    except NotUnderstood as error:
        return {"verified": None, "note": f"not understood: {error}"}


def _clean(text: str) -> str:
    text = _FUNCTIONS.sub(r"\\\1", _LOOKS.sub(" ", text).replace("**", "^")).strip()
    text = re.sub(r"\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b", ",", text)
    text = re.sub(r",\s*,", ",", text)
    text = re.sub(r"([\d.]+|[a-z])\s*(?:\^\s*\{?\s*\\circ\s*\}?|\u00b0)", r"(\1\\cdot\\frac{\\pi}{180})", text)
    text = re.sub(r"\\(?:mathrm|text|mathbf)\s*\{\s*(\w)\s*\}", r"\1", text)
    text = re.sub(r"(\d*)\.(\d*)\\overline\s*\{(\d+)\}", _repeating, text)
    text = re.sub(r"\u221a\s*(?:\(([^()]*)\)|(\w+))", r"\\sqrt{\1\2}", re.sub(r"\\log_(\w)", r"\\log_{\1}", text))
    text = re.sub(r"\\[dtc]frac", r"\\frac", _ROOT.sub(r"\\sqrt{\1}", text))
    text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*(\w)", r"\1{\2}", re.sub(r"\\frac\s*(\w)\s*\{", r"\\frac{\1}{", text))
    text = re.sub(r"\\sqrt\s*(\w)", r"\\sqrt{\1}", re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text))
    text = re.sub(r"(?<![\w)\]}])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d/])", r"(\1+\\frac{\2}{\3})", text)
    text = re.sub(r"(\d)[lr]?\{,\}(?=\d{3})", r"\1", text)
    return (
        text.replace("\\{", "\u2983")
        .replace("\\}", "\u2984")
        .replace("\\lbrace", "\u2983")
        .replace("\\rbrace", "\u2984")
    )


def _repeating(match: re.Match[str]) -> str:
    whole, fixed, period = match.groups()
    below = (10 ** len(period) - 1) * 10 ** len(fixed)
    return f"\\frac{{{int(whole + fixed + period) - int(whole + fixed or 0)}}}{{{below}}}"


def _read(text: str) -> Any:
    """Return a formula as sympy has it, collections as `_Collection`; raises NotUnderstood."""
    text = text.strip()
    if len(text) > _MAX_CHARS:
        raise NotUnderstood(f"{len(text)} characters")
    if _DOTS.fullmatch(text):
        return _ELLIPSIS
    if NUMBER.fullmatch(plain_numbers(text).strip()):
        return _formula(text)
    if text in ("\\emptyset", "\\varnothing"):
        return _Collection("{}", ())
    unions = _split(text, "\\cup")
    if len(unions) > 1:
        return _Collection("\\cup", tuple(map(_read, unions)))
    parts = _split(text, ",")
    if len(parts) > 1:
        return _Collection("{}", tuple(map(_read, parts)))
    if text and text[0] in _OPEN and text[-1] in _OPEN.values() and _closes_at_end(text):
        elements = _split(text[1:-1], ",")
        if text[0] == "\u2983":
            return _Collection("{}", tuple(map(_read, elements)) if text[1:-1].strip() else ())
        if len(elements) > 1:
            return _Collection(text[0] + text[-1], tuple(map(_read, elements)))
    return _formula(text)


def _depths(text: str) -> list[int]:
    depth, depths = 0, []
    for character in text:
        depth += character in "([{\u2983"
        depths.append(depth)
        depth -= character in ")]}\u2984"
    return depths


def _closes_at_end(text: str) -> bool:
    return all(_depths(text[:-1] + " ")[1:-1]) and _depths(text)[-1] == 1


def _split(text: str, separator: str) -> list[str]:
    """Return the parts between the separators outside of brackets; a comma between thousands is none."""
    depths, parts, start = _depths(text), [], 0
    for found in re.finditer(re.escape(separator), text):
        thousands = (
            separator == "," and re.match(r"(?<=\d),\d{3}(?!\d)", text[max(found.start() - 1, 0) :][1:]) is not None
        )
        if depths[found.start()] == 0 and not thousands:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def _formula(text: str) -> Any:
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from latex2sympy2_extended.symbols import GREEK_LETTER_MAP

    number = NUMBER.fullmatch(plain_numbers(text).strip())
    if number and (value := number_of(number)):
        return value
    if not text or text.count("{") != text.count("}") or _MISREAD.search(text):
        raise NotUnderstood(text[:80])
    try:
        latex = text.replace("\u2983", "\\{").replace("\u2984", "\\}")
        read = latex2sympy(
            latex, normalization_config=None, conversion_config=ConversionConfig(lowercase_symbols=False)
        )
        letters = [re.sub(r"_.*|\w+\{|\}", "", symbol.name) for symbol in read.free_symbols]
        exactly = {decimal: sympy.Rational(str(decimal)) for decimal in read.atoms(sympy.Float)}
        exactly |= {symbol: sympy.I for symbol in read.free_symbols if symbol.name == "i"}
        # What the parser leaves unevaluated.
        read = read.subs(exactly).doit()
    # The parser raises errors of many kinds.
    except Exception as error:
        raise NotUnderstood(text[:80]) from error
    if read.has(sympy.zoo, sympy.nan) or any(
        len(letter) > 1 and letter not in GREEK_LETTER_MAP.values() for letter in letters
    ):
        # Division by zero; the parser takes any unknown command for a symbol.
        raise NotUnderstood(text[:80])
    if isinstance(read, sympy.FiniteSet):
        return _Collection("{}", tuple(read.args))
    return read


def _same(answer: Any, expected: Any) -> bool:
    """Return whether two formulas or collections are equal; raises NotUnderstood where that is not known."""
    import sympy

    if isinstance(answer, sympy.Eq) != isinstance(expected, sympy.Eq):
        answer, expected = (
            value.rhs if isinstance(value, sympy.Eq) and value.lhs.is_Symbol else value for value in (answer, expected)
        )
    if isinstance(answer, _Collection) and isinstance(expected, _Collection):
        return _same_elements(answer, expected)
    if isinstance(answer, _Collection) or isinstance(expected, _Collection):
        collection, other = (answer, expected) if isinstance(answer, _Collection) else (expected, answer)
        if len(collection.elements) > 1 and isinstance(other, Number | sympy.Expr):
            return False
        raise NotUnderstood("a collection and a formula")
    if isinstance(answer, Number) and isinstance(expected, Number):
        return same_number(answer, expected)
    if all(isinstance(value, Number | sympy.Expr) for value in (answer, expected)):
        return _same_values(answer, expected)
    if isinstance(answer, sympy.MatrixBase) and isinstance(expected, sympy.MatrixBase):
        return answer.shape == expected.shape and all(map(_same, answer.flat(), expected.flat()))
    return _same_relations(answer, expected)


def _same_elements(answer: _Collection, expected: _Collection) -> bool:
    if answer.brackets != expected.brackets:
        if len(answer.elements) == len(expected.elements) and {answer.brackets, expected.brackets} <= {
            "()",
            "[)",
            "(]",
            "[]",
        }:
            return False
        raise NotUnderstood("collections of different kinds")
    given, wanted = list(answer.elements), list(expected.elements)
    if _ELLIPSIS in given or _ELLIPSIS in wanted:
        return _same_sequences(given, wanted)
    if answer.brackets not in ("{}", "\\cup"):
        return len(given) == len(wanted) and all(map(_same, given, wanted))
    return all(any(_same(value, other) for other in wanted) for value in given) and all(
        any(_same(value, other) for value in given) for other in wanted
    )


def _same_sequences(given: list[Any], wanted: list[Any]) -> bool:
    """Sequences are different if they differ before the dots or at the end; equal if they are written alike."""
    if not (_ELLIPSIS in given and _ELLIPSIS in wanted):
        raise NotUnderstood("a sequence and a list")
    dots = min(given.index(_ELLIPSIS), wanted.index(_ELLIPSIS))
    if not all(map(_same, given[:dots], wanted[:dots])):
        return False
    if given[dots:][:1] != wanted[dots:][:1] or len(given) != len(wanted):
        raise NotUnderstood("sequences that are written differently")
    return all(map(_same, given[dots + 1 :], wanted[dots + 1 :]))


def _same_values(answer: Any, expected: Any) -> bool:
    import sympy

    left, right = map(_exactly, (answer, expected))
    if left == right:
        return True
    if left.free_symbols or right.free_symbols:
        return _same_functions(left, right)
    a, b = sympy.N(left, _DIGITS), sympy.N(right, _DIGITS)
    if not (a.is_finite and b.is_finite) or (left.is_Rational and right.is_Rational):
        # A number that was computed may stand for one with decimals.
        numbers = [
            value
            if isinstance(value, Number)
            else Number(Decimal(exact.p), Decimal(exact.q))
            if exact.is_Rational
            else None
            for value, exact in ((answer, left), (expected, right))
        ]
        return None not in numbers and same_number(numbers[0], numbers[1])
    written = next((value for value in (answer, expected) if isinstance(value, Number) and has_decimals(value)), None)
    if written is not None and a.is_real and b.is_real:
        return same_number(Number(Decimal(str(b if written is answer else a))), written)
    if _differ(a, b):
        return False
    return _known(sympy.simplify(left - right).is_zero)


def _exactly(value: Any) -> Any:
    import sympy

    if not isinstance(value, Number):
        return value
    above, below = (sympy.Rational(*part.as_integer_ratio()) for part in (value.above, value.below))
    return above / below / (100 if value.percent else 1)


def _same_functions(left: Any, right: Any) -> bool:
    import sympy

    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    for sign in (1, -1):
        point = {symbol: sign * sympy.Rational(7 + 4 * index, 5 + 2 * index) for index, symbol in enumerate(symbols)}
        a, b = (sympy.N(side.subs(point), _DIGITS) for side in (left, right))
        # Roots of negative numbers are no evidence.
        is_plain = (a.is_real and b.is_real) or (sign > 0 and a.is_finite and b.is_finite)
        if is_plain and _differ(a, b):
            return False
    return _known(sympy.simplify(left - right).is_zero or (left - right).equals(0))


def _differ(a: Any, b: Any) -> bool:
    import sympy

    return bool(abs(a - b) > sympy.Float(10) ** -(_DIGITS // 2) * max(abs(a), abs(b)))


def _known(is_zero: bool | None) -> bool:
    if is_zero is None:
        raise NotUnderstood("whether they are equal is not known")
    return is_zero


def _same_relations(answer: Any, expected: Any) -> bool:
    """Equations, inequalities, intervals and sets, as math-verify compares them."""
    from math_verify import verify

    if type(answer) is type(expected) and answer == expected:
        return True
    return bool(verify([expected], [answer], timeout_seconds=None))


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    _read("x")
    limit_memory_growth(_MAX_MEMORY_BYTES)
    serve_requests(compare)
