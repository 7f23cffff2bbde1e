"""What the answers of all kinds of servers have in common."""

import math
from typing import Final

from stillhouse.types import JsonObject

_LEAST: Final = -9999.0
"""Written by vLLM and others for minus infinity, which JSON does not have."""
_ROUNDING: Final = 1e-3


class WrongAnswer(Exception):
    """An answer with HTTP 200 that does not say what was asked; to ask again is of no use."""


def checked(value: object, token: int) -> float:
    """A log-probability.

    Raises:
        WrongAnswer: it is none that a loss can be computed from.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongAnswer(f"the log-probability of token {token} is {value!r}; expected a number")
    if not math.isfinite(value) or not _LEAST < value <= _ROUNDING:
        raise WrongAnswer(
            f"the log-probability of token {token} is {value}; expected a finite number of at most 0. A token of "
            "no probability is one that the teacher does not know: check that the server has the student's vocabulary "
            "and restricts no tokens"
        )
    return min(float(value), 0.0)


def choices_of(answer: object, count: int) -> list[JsonObject]:
    """The choices of a completion, in the order of the prompts.

    Raises:
        WrongAnswer: there are not `count` of them.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise WrongAnswer("it has no `choices`")
    places = [choice.get("index") for choice in choices]
    if len(places) != count or any(place not in places for place in range(count)):
        raise WrongAnswer(f"it has choices {places} for {count} prompts")
    return [choices[places.index(place)] for place in range(count)]
