"""The judgement in what a judge wrote: read in any form whose meaning is beyond doubt, and in no other."""

import ast
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson

from stillhouse.agent.json_values import value_alone, values_in
from stillhouse.chat.content import reasoning_of, text_of
from stillhouse.chat.thoughts import split_thoughts
from stillhouse.config import JudgeConfig
from stillhouse.dataset.judge import CANNOT_TELL, EXPLANATION, RIGHT, VERDICT, WRONG
from stillhouse.types import JsonObject, Message

_GRADE: Final = re.compile(r"(\d+)(?:\.0+)?(?:\s*(?:/|out of)\s*(\d+))?", re.ASCII)
_ESCAPE: Final = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
_GRADE_KEYS: Final = ("score", "grade", "rating", "value")
"""Keys of the grade where a criterion has an object of its own."""
_MAX_WRAPPINGS: Final = 3
"""Lists, objects and strings around a judgement."""


def judgement_reader(config: JudgeConfig, *, verdict: bool) -> Callable[[Message], Message]:
    """Return what puts a judge's message into the form of `judgement_schema`.

    The judgement may stand behind thinking, in a fence, among prose, in a list or an object of its own, as a Python
    literal, or be all of the reasoning. Other keys are ignored. Without an explanation it must be what the text ends
    with, since a judge may quote. A message without a judgement, or with two that differ, is left as it is, and so
    misses the schema.
    """
    readers: dict[str, Callable[[Any], Any]] = {
        criterion.name: lambda said, best=criterion.best: _grade(said, best) for criterion in config.rubric
    } | ({VERDICT: _verdict} if verdict else {})

    def read(message: Message) -> Message:
        distinct: dict[str, JsonObject] = {}
        for value, is_last in _candidates(message):
            judgement = _judgement(value, readers)
            if judgement is not None and (is_last or judgement[EXPLANATION]):
                distinct[str({**judgement, EXPLANATION: None})] = judgement
        if len(distinct) != 1 or message.get("tool_calls"):
            return message
        [judgement] = distinct.values()
        return {"role": "assistant", "content": orjson.dumps(judgement).decode()}

    return read


def _candidates(message: Message) -> list[tuple[Any, bool]]:
    """Values that the judge wrote, and whether each is what its text ends with."""
    text = split_thoughts(text_of(message)).answer
    if not text.strip():
        alone = value_alone(reasoning_of(message))
        return [] if alone is None else [(alone.value, True)]
    # LaTeX is written with backslashes that JSON does not know.
    for spelt in (text, _ESCAPE.sub(lambda escape: escape[1] or r"\\", text)):
        if found := values_in(spelt):
            return [(value, spelt.rstrip("` \t\r\n").endswith(written)) for value, written in found]
    try:
        # Quotes, constants and trailing commas as Python has them.
        tree = ast.parse(text[text.index("{") : text.rindex("}") + 1], mode="eval").body
        keys = [ast.dump(key) for key in getattr(tree, "keys", ()) if key is not None]
        return [(ast.literal_eval(tree), True)] if len(keys) == len(set(keys)) else []
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []


def _judgement(value: Any, readers: dict[str, Callable[[Any], Any]]) -> JsonObject | None:
    """The judgement that a value is, or that is all that it holds."""
    for _ in range(_MAX_WRAPPINGS):
        if isinstance(value, str):
            alone = value_alone(value)
            value = None if alone is None else alone.value
        if isinstance(value, dict):
            read = {name: reader(_said(value, name, readers)) for name, reader in readers.items()}
            if None not in read.values():
                explanation = _said(value, EXPLANATION, readers)
                return {EXPLANATION: explanation if isinstance(explanation, str) else "", **read}
            value = list(value.values())
        if not isinstance(value, list) or len(value) != 1:
            return None
        [value] = value
    return None


def _said(judgement: JsonObject, name: str, names: Iterable[str]) -> Any:
    """What is said under a name, however its key is spelt; None where it is said twice."""
    keys = [key for key in judgement if key == name or (key not in names and _plain(key) == _plain(name))]
    return judgement[keys[0]] if len(keys) == 1 else None


def _grade(said: Any, best: int) -> int | None:
    if isinstance(said, dict):
        keys = [key for key in _GRADE_KEYS if key in said]
        said = said[keys[0]] if len(keys) == 1 else None
    if isinstance(said, str):
        written = _GRADE.fullmatch(said.strip(" *."))
        said = int(written[1]) if written is not None and int(written[2] or best) == best else None
    is_grade = isinstance(said, int | float) and not isinstance(said, bool) and 0 <= said <= best and said % 1 == 0
    return int(said) if is_grade else None


def _verdict(said: Any) -> str | None:
    spelt = {_plain(verdict): verdict for verdict in (RIGHT, WRONG, CANNOT_TELL)}
    return spelt.get(_plain(said)) if isinstance(said, str) else None


def _plain(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())
