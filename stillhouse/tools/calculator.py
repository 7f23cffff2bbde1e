"""The built-in `calculator`: arithmetic without `eval`.

The expression is parsed by `ast`, and only numbers, the seven operators and parentheses are evaluated. Lengths and
sizes are bounded, so that no expression can block a rollout or fill the memory.
"""

import ast
import math
import operator
from collections.abc import Callable
from typing import Final

from stillhouse.tools.decorator import tool

Number = int | float

_MAX_CHARACTERS: Final = 1000
_MAX_BITS: Final = 4096
_EXACT_FLOAT: Final = 2**53
_OPERATORS: Final[dict[type[ast.operator], Callable[[Number, Number], Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return evaluate(expression)


def evaluate(expression: str) -> str:
    """Return an expression's value, a whole one without `.0`; raise ValueError if it is none or exceeds the bounds."""
    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(f"the expression has {len(expression)} characters; at most {_MAX_CHARACTERS} are allowed")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression!r} is not arithmetic; expected for instance (2 + 3) * 4") from error
    try:
        value = _value(tree.body)
    except ZeroDivisionError as error:
        raise ValueError(f"{expression!r} divides by zero") from error
    except OverflowError as error:
        raise ValueError(f"{expression!r} has a number that is too large") from error
    except RecursionError as error:
        raise ValueError(f"{expression!r} is nested too deeply") from error
    if isinstance(value, int):
        return str(value)
    if value.is_integer() and abs(value) < _EXACT_FLOAT:
        return str(int(value))
    # 15 digits are what a double holds exactly: 0.1 + 0.2 reads 0.3.
    return f"{value:.15g}"


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError(f"{node.value!r} is not a number")
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=ast.BitXor(), right=right):
            raise ValueError("^ is not supported; write ** for powers")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left), _value(right)))
    raise ValueError(f"{ast.unparse(node)!r} is not supported; use numbers, + - * / // % ** and parentheses")


def _power(base: Number, exponent: Number) -> Number:
    # Checked before computing: 9**9**9 would not come back.
    if isinstance(base, int) and base.bit_length() * abs(exponent) > _MAX_BITS:
        raise OverflowError
    value = base**exponent
    if isinstance(value, complex):
        raise ValueError(f"{base} ** {exponent} is not a real number")
    return _bounded(value)


def _bounded(value: Number) -> Number:
    too_large = value.bit_length() > _MAX_BITS if isinstance(value, int) else not math.isfinite(value)
    if too_large:
        raise OverflowError
    return value
