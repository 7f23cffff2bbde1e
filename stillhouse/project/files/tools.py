"""Tools that the models may call: every function under `@tool`. The docstring and the type hints are what they read.

This one is all that the prompts beside it need. Yours may look something up, search, or run code; `async` functions
work as well. An exception becomes a message to the model, which may then try something else.
"""

import ast
import operator

from stillhouse.tools import tool

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


@tool(timeout_s=5)
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return str(_value(ast.parse(expression.strip(), mode="eval").body))


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        result: int = _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        return result
    raise ValueError("expected whole numbers with +, - and *, such as 3 * (4 + 5)")
