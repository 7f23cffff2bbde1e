"""The worker process that compares formulas: read by the parser of math-verify, compared exactly by sympy."""

import logging
import re
from decimal import Decimal
from itertools import starmap, takewhile
from typing import Any, Final

from stillhouse.processes.worker_pool import limit_memory_growth, serve_requests
from stillhouse.types import JsonObject
from stillhouse.verification.formulas import ELLIPSIS, Collection, NotUnderstood, read_formula, spelled
from stillhouse.verification.numbers import Number, has_decimals, same_number

_MAX_MEMORY_BYTES: Final = 1 << 30
_DIGITS: Final = 60
"""Digits to which two constants are computed; those that differ in the first half of them are different."""
_NAMED: Final = re.compile(r"([A-Za-z](?:_\w)?(?:\([a-z]\))?)\s*(?:=(?!=)|\\in(?![a-z]))\s*")


def compare(request: JsonObject) -> JsonObject:
    """Return whether `answer` equals `expected`; None and a note if that is not understood."""
    expected, answer = _without_name(spelled(request["expected"]), spelled(request["answer"]))
    try:
        return {"verified": _same(read_formula(answer), read_formula(expected)), "note": None}
    except NotUnderstood as error:
        return {"verified": None, "note": f"not understood: {error}"}


def _without_name(*texts: str) -> list[str]:
    """Return two formulas without the name of what was asked for, as in `x = 5`, which is often left out.

    It stays where it may be a part of an equation, or where the two name different things.
    """
    names = {name[1] if (name := _NAMED.match(text)) else None for text in texts}
    plain = all(text.count("=") <= (_NAMED.match(text) is not None) for text in texts)
    return [_NAMED.sub("", text, count=1) if plain and len(names - {None}) == 1 else text for text in texts]


def _same(answer: Any, expected: Any) -> bool:
    """Return whether two formulas or collections are equal; raises NotUnderstood where that is not known."""
    import sympy
    from math_verify import verify

    values = [answer, expected]
    if sum(isinstance(value, sympy.Eq) for value in values) == 1:
        values = [value.rhs if isinstance(value, sympy.Eq) and value.lhs.is_Symbol else value for value in values]
    collections = [value for value in values if isinstance(value, Collection)]
    if len(collections) == 2:
        return _same_elements(*collections)
    if collections:
        if len(collections[0].elements) > 1 and any(isinstance(value, Number | sympy.Expr) for value in values):
            return False
        raise NotUnderstood("a collection and a formula")
    if all(isinstance(value, Number | sympy.Expr) for value in values):
        return _same_values(*values)
    if all(isinstance(value, sympy.MatrixBase) for value in values):
        return values[0].shape == values[1].shape and all(map(_same, values[0].flat(), values[1].flat()))
    if all(isinstance(value, sympy.core.relational.Relational) for value in values):
        return _same_relations(*values)
    # Chains of inequalities and the sets of numbers.
    return values[0] == values[1] or bool(verify([values[1]], [values[0]], timeout_seconds=None))


def _same_relations(answer: Any, expected: Any) -> bool:
    """Return whether two relations differ by a factor only."""
    import sympy

    turned = [relation.reversed if relation.rel_op in ("<", "<=") else relation for relation in (answer, expected)]
    if turned[0].rel_op != turned[1].rel_op:
        return False
    factor = sympy.simplify((turned[0].lhs - turned[0].rhs) / (turned[1].lhs - turned[1].rhs))
    return bool(factor.is_number and (factor > 0 if turned[0].rel_op in (">", ">=") else factor != 0))


def _same_elements(answer: Collection, expected: Collection) -> bool:
    given, wanted = answer.elements, expected.elements
    if answer.kind != expected.kind:
        if {*answer.kind, *expected.kind} <= {*"()[]"} and len(given) == len(wanted):
            return False
        if answer.kind[0] == expected.kind[0] == "_" and given != wanted:
            return False
        raise NotUnderstood("collections of different kinds")
    if any(value is ELLIPSIS for value in given + wanted):
        return _same_sequences(given, wanted)
    if answer.kind not in ("{}", "\\cup"):
        return len(given) == len(wanted) and all(map(_same, given, wanted))
    return _within(given, wanted) and _within(wanted, given)


def _within(values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return all(any(_same(value, other) for other in others) for value in values)


def _same_sequences(given: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    """Return whether sequences are equal: not if they differ before the dots; so if they are written alike."""
    pairs = list(zip(given, wanted, strict=False))
    if not all(starmap(_same, takewhile(lambda pair: not any(value is ELLIPSIS for value in pair), pairs))):
        return False
    if [value is ELLIPSIS for value in given] != [value is ELLIPSIS for value in wanted]:
        raise NotUnderstood("sequences that are written differently")
    return all(starmap(_same, pairs))


def _same_values(answer: Any, expected: Any) -> bool:
    import sympy

    numbers = [_number(value) for value in (answer, expected)]
    if numbers[0] and numbers[1]:
        return same_number(numbers[0], numbers[1])
    left, right = (
        sympy.Rational(*value.above.as_integer_ratio()) / sympy.Rational(*value.below.as_integer_ratio())
        if isinstance(value, Number)
        else value
        for value in (answer, expected)
    )
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    for sign in (1, -1):
        point = {symbol: sign * sympy.Rational(7 + 4 * index, 5 + 2 * index) for index, symbol in enumerate(symbols)}
        a, b = (sympy.N(side.subs(point), _DIGITS) for side in (left, right))
        # Roots of negative numbers are no evidence against an equation.
        if not (a.is_real and b.is_real) and not (sign > 0 and a.is_finite and b.is_finite):
            continue
        written = next((number for number in numbers if number and has_decimals(number)), None)
        if written and not symbols and a.is_real and b.is_real:
            return same_number(Number(Decimal(str(b if written is numbers[0] else a))), written)
        if abs(a - b) > sympy.Float(10) ** -(_DIGITS // 2) * max(abs(a), abs(b)):
            return False
    is_zero = left == right or sympy.simplify(left - right).is_zero or (left - right).equals(0)
    if is_zero is None:
        raise NotUnderstood("whether they are equal is not known")
    return bool(is_zero)


def _number(value: Any) -> Number | None:
    """Return a number, also one that was computed, without its percent sign; None if it is not rational."""
    if isinstance(value, Number):
        return Number(value.above, value.below * 100) if value.percent else value
    return Number(Decimal(value.p), Decimal(value.q)) if value.is_Rational else None


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    read_formula("x")
    limit_memory_growth(_MAX_MEMORY_BYTES)
    serve_requests(compare)
