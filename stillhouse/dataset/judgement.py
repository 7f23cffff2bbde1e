"""The judgement in what a judge wrote: read in any form whose meaning is beyond doubt, and in no other."""

import ast
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from stillhouse.agent.json_values import value_alone, values_in
from stillhouse.chat.content import reasoning_of, text_of
from stillhouse.config import JudgeConfig
from stillhouse.dataset.judge import EXPLANATION, VERDICT, judgement_schema
from stillhouse.store import exact_json
from stillhouse.types import JsonObject, Message

_GRADE: Final = re.compile(r"(\d+)(?:\.0+)?(?:\s*/\s*(\d+))?", re.ASCII)
_ESCAPE: Final = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
_MAX_WRAPPINGS: Final = 3
"""Lists, objects and strings around a judgement."""


def judgement_reader(config: JudgeConfig, *, verdict: bool) -> Callable[[Message], Message]:
    """Return what puts a judge's message into the form of `judgement_schema`.

    The judgement may stand in a fence, among prose, in a list or an object of its own, as a Python literal, or in the
    reasoning where there is no text. A message without a judgement, or with two that differ, is left as it is, and so
    misses the schema.
    """
    names = judgement_schema(config.rubric, verdict=verdict)["required"]
    best = {criterion.name: criterion.best for criterion in config.rubric}

    def read(message: Message) -> Message:
        distinct: dict[bytes, JsonObject] = {}
        for value in _written(text_of(message).strip() or reasoning_of(message)):
            if (said := _judgement(value, names)) is not None:
                judgement = {name: _plain(name, said[name], best.get(name)) for name in names}
                distinct[exact_json.dumps({**judgement, EXPLANATION: ""})] = judgement
        if len(distinct) != 1 or message.get("tool_calls"):
            return message
        [judgement] = distinct.values()
        return {"role": "assistant", "content": exact_json.dumps(judgement).decode()}

    return read


def _written(text: str) -> list[Any]:
    # LaTeX is written with backslashes that JSON does not know.
    for spelt in (text, _ESCAPE.sub(lambda escape: escape[1] or r"\\", text)):
        if found := values_in(spelt):
            return [written.value for written in found]
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        # Quotes, constants and trailing commas as Python has them.
        tree = ast.parse(text[text.index("{") : text.rindex("}") + 1], mode="eval").body
        keys = [ast.dump(key) for key in getattr(tree, "keys", ()) if key is not None]
        if len(keys) == len(set(keys)):
            return [exact_json.loads(exact_json.dumps(ast.literal_eval(tree)))]
    return []


def _judgement(value: Any, names: Sequence[str]) -> JsonObject | None:
    """Return the object that a value is, or that is all it holds, if its keys in lower case have each name once."""
    for _ in range(_MAX_WRAPPINGS):
        if isinstance(value, str) and (alone := value_alone(value)):
            value = alone.value
        if isinstance(value, dict | list) and len(value) == 1:
            [value] = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict):
        return None
    keys = [key.casefold() for key in value]
    return dict(zip(keys, value.values(), strict=True)) if all(keys.count(name) == 1 for name in names) else None


def _plain(name: str, said: Any, best: int | None) -> Any:
    """Return a grade or verdict as the schema has it, where it is spelt in another way."""
    if best is not None and isinstance(said, str) and (grade := _GRADE.fullmatch(said.strip(" *."))):
        return int(grade[1]) if int(grade[2] or best) == best else said
    return said.strip(" *.").casefold().replace(" ", "_") if name == VERDICT and isinstance(said, str) else said
