"""The answer's exceptions, as the tests see them."""

import builtins
import sys
from collections.abc import Callable
from typing import Any

from stillhouse.verification.code.stand_in import StandIn

Family = list[list[str]]
"""Module and name of a class and of its bases, nearest first."""


class _OfAnswer:
    """What an exception of the answer's own class says and has."""

    def __str__(self) -> str:
        return str(vars(self).get("_text") or super().__str__())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "_stand_in" not in vars(self):
            raise AttributeError(name)
        return getattr(vars(self)["_stand_in"], name)


class AnswerErrors:
    """Classes of the answer's exceptions by number, each derived from the nearest class that the tests have, too."""

    def __init__(self) -> None:
        self._classes: dict[int, type[BaseException]] = {}

    def kind(self, number: int, family: Family) -> type[BaseException]:
        """The class of this number and family."""
        known = _known(*family[0])
        if known is not None:
            return known
        if number not in self._classes:
            base = next((one for one in (_known(*entry) for entry in family[1:]) if one is not None), Exception)
            self._classes[number] = type(family[0][1], (_OfAnswer, base), {"_number": number})
        return self._classes[number]

    def error(self, form: list[Any], decode: Callable[[Any], Any], stand_in: Callable[[int], StandIn]) -> BaseException:
        """The exception of an encoded form; raises ValueError and its like where it is none."""
        _, number, class_number, family, args, text, reason = form
        kind = self.kind(int(class_number), family)
        given = [decode(arg) for arg in args]
        try:
            error = kind(*given)
        except TypeError:
            error = kind.__new__(kind)
            error.args = tuple(given)
        vars(error).update(_text=str(text), _reason=str(reason), _stand_in=stand_in(int(number)))
        return error


def _known(module: str, name: str) -> type[BaseException] | None:
    """A class of Python's own that the tests can have by name."""
    top = module.partition(".")[0]
    # What unittest raises to skip a test would skip it.
    if top not in sys.stdlib_module_names or top == "unittest":
        return None
    found = getattr(builtins if module == "builtins" else sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
