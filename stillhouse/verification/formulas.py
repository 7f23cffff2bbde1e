r"""Formulas as sympy reads them, and points, intervals, sets, lists and sequences of them."""

import re
from decimal import Decimal
from typing import Any, Final, NamedTuple

from stillhouse.verification.numbers import Number, number_alone

_MAX_CHARS: Final = 2000
"""Longest formula read; the parser takes seconds for longer ones."""
# Braces of sets, which are no braces of LaTeX.
_BRACES: Final = {"\\{": "\u2983", "\\}": "\u2984"}
_DEGREES: Final = r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\u00b0)"
_SPELLINGS: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|[bB]ig[glr]*|displaystyle)(?![a-z])|\\[,;:! ]|\\(?=%)", " "),
        (r"\*\*", "^"),
        (r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sin|cos|tan|log|ln|exp|pi|infty|cdot|sqrt)(?![A-Za-z])", r"\\\1"),
        (r",?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)", ","),
        (rf"([\d.]+|[a-z]){_DEGREES}", r"(\1\\cdot\\frac{\\pi}{180})"),
        (r"\\(?:mathrm|text|mathbf)\s*\{\s*(\w)\s*\}", r"\1"),
        (r"(?:\u221a|\\sqrt)\s*(?:\(([^()]*)\)|(\w+))", r"\\sqrt{\1\2}"),
        (r"\\log_(\w)", r"\\log_{\1}"),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\w)\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\w)", r"\1{\2}"),
        (r"(?<![\w)\]}])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d/])", r"(\1+\\frac{\2}{\3})"),
        (r"(?<![\w)\]}.])(\d+)\s*(\\frac\s*\{\d+\}\s*\{\d+\})", r"(\1+\2)"),
        # The parser adds whole numbers that stand side by side, as in mixed numbers: `3(5)`, `10\\binom{4}{2}`.
        (r"(?<![_^])([\d)])\s*(?=\(|\\(?:frac|binom))|(\))\s*(?=\d)", r"\1\2\\cdot "),
        (r"(\\(?:frac|binom)\s*\{[^{}]*\}\s*\{[^{}]*\})\s*(?=[\d(]|\\(?:frac|binom|sqrt))", r"\1\\cdot "),
        (r"(\d)\{,\}(?=\d{3})", r"\1"),
        (r"\\lbrace", "\\\\{"),
        (r"\\rbrace", "\\\\}"),
    )
)
_REPEATING: Final = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d+)\}")
_BASED: Final = re.compile(r"\(?([0-9][0-9A-Za-z]*)\)?_\{?(\d{1,2})\}?")
_DOTS: Final = re.compile(r"\\[lc]?dots|\.\.\.|\u2026")
_THOUSANDS: Final = re.compile(r"\d,\d{3}(?!\d)")
# What the parser misreads without a word: bases, numbers side by side, a word as a product of its letters.
_MISREAD: Final = re.compile(
    r"\A\{|\d\s*[_{]|\d\s+\d|(?<![\\A-Za-z])[A-Za-z]{4,}|\d[eE][-+]?\d|[?'\u00b0]"
    r"|\\(?:circ|text|mathrm|p?mod|equiv|[lc]?dots|approx)(?![a-z])"
)


class NotUnderstood(Exception):
    """A formula, or a comparison, that is not understood."""


class Collection(NamedTuple):
    kind: str
    """Its brackets, as `()` or `[)`; `{}` also without brackets, where there is no order either; `\\cup`; or `_` and
    the base of a number.
    """
    elements: tuple[Any, ...]


ELLIPSIS: Final = Collection("...", ())


def spelled(text: str) -> str:
    """Return a formula in the spelling that the parser reads."""
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_fraction, text.strip())
    for latex, brace in _BRACES.items():
        text = text.replace(latex, brace)
    return text


def _fraction(repeating: re.Match[str]) -> str:
    whole, fixed, period = repeating.groups()
    above, below = int(whole + fixed + period) - int(whole + fixed or 0), (10 ** len(period) - 1) * 10 ** len(fixed)
    return f"\\frac{{{above}}}{{{below}}}"


def read_formula(text: str) -> Any:
    """Return a `Number`, a `Collection` or an expression of sympy for a text as `spelled` returns it.

    Raises NotUnderstood.
    """
    text = text.strip()
    if len(text) > _MAX_CHARS:
        raise NotUnderstood(f"{len(text)} characters")
    if number := number_alone(text):
        return number
    if _DOTS.fullmatch(text):
        return ELLIPSIS
    if based := _BASED.fullmatch(text):
        return Collection(f"_{based[2]}", (_whole(*based.groups()),))
    for separator, kind in (("\\cup", "\\cup"), (",", "{}")):
        parts = _split(text, separator)
        if len(parts) > 1:
            return Collection(kind, tuple(map(read_formula, parts)))
    if text[:1] in ("(", "[", "\u2983") and text[-1:] in (")", "]", "\u2984") and min(_depths(text)[:-1]) > 0:
        inside, brackets = text[1:-1].strip(), (text[0] + text[-1]).replace("\u2983\u2984", "{}")
        elements = _split(inside, ",") if inside else []
        if brackets == "{}" or len(elements) > 1:
            return Collection(brackets, tuple(map(read_formula, elements)))
    return _parsed(text)


def _whole(digits: str, base: str) -> Number:
    try:
        return Number(Decimal(int(digits, int(base))))
    except ValueError:
        raise NotUnderstood("a digit that its base does not have") from None


def _depths(text: str) -> list[int]:
    """Return how many brackets are open behind each character."""
    depth, depths = 0, []
    for character in text:
        depth += (character in "([{\u2983") - (character in ")]}\u2984")
        depths.append(depth)
    return depths


def _split(text: str, separator: str) -> list[str]:
    """Return the parts between the separators outside of brackets; a comma between thousands is none."""
    parts, start = [], 0
    depths = _depths(text) if separator in text else []
    for found in re.finditer(re.escape(separator), text):
        if depths[found.start()] == 0 and not _THOUSANDS.match(text, max(found.start() - 1, 0)):
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def _parsed(text: str) -> Any:
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from latex2sympy2_extended.symbols import GREEK_LETTER_MAP

    if not text or text.count("{") != text.count("}") or _MISREAD.search(text):
        raise NotUnderstood(text[:80])
    for latex, brace in _BRACES.items():
        text = text.replace(brace, latex)
    try:
        config = ConversionConfig(lowercase_symbols=False)
        read = latex2sympy(text, normalization_config=None, conversion_config=config)
        names = {symbol: re.sub(r"_.*|\w+\{|\}", "", symbol.name) for symbol in read.free_symbols}
        exactly = {decimal: sympy.Rational(str(decimal)) for decimal in read.atoms(sympy.Float)}
        exactly |= {symbol: sympy.I for symbol, name in names.items() if name == "i"}
        # The parser leaves much unevaluated.
        read = read.subs(exactly).doit()
    # It raises errors of many kinds.
    except Exception as error:
        raise NotUnderstood(text[:80]) from error
    # It takes an unknown command for a symbol.
    if (
        read in (sympy.true, sympy.false)
        or read.has(sympy.zoo, sympy.nan)
        or any(len(name) > 1 for name in {*names.values()} - {*GREEK_LETTER_MAP.values()})
    ):
        raise NotUnderstood(text[:80])
    if isinstance(read, sympy.FiniteSet) or read is sympy.S.EmptySet:
        return Collection("{}", tuple(read.args))
    return read
