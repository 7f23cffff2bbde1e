"""Parses a row of a prompts source into a prompt and its metadata."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import orjson

from stillhouse.config import PromptsConfig, Verifier
from stillhouse.prompts.answer import as_text, take_answer
from stillhouse.store import exact_json
from stillhouse.store.fingerprint import prompt_id
from stillhouse.types import JsonObject, Message, Prompt, PromptMetadata

VERIFIERS: Final[tuple[str, ...]] = get_args(Verifier)
QUESTION_COLUMNS: Final = ("question", "instruction", "problem", "query")
"""Columns that hold the prompt of a row without `prompt` and `messages`."""
_UNSENT: Final = "with `system` beside the prompt, which is metadata and not sent: make it the first of `messages`"
_SHOWN_PROBLEMS: Final = 5
_ROLES: Final = ("system", "user", "assistant", "tool")
_OTHER_ROLES: Final = {
    "developer": "system",
    "human": "user",
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "ai", "model"), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response", "ipython"), "tool"),
}
"""OpenAI's `developer` (system messages of newer models) and `function` (formerly tool results), and what ShareGPT's
files, LLaMA-Factory, Gemma's and Llama's templates call the four."""


class RowProblem(ValueError):
    """A row is no prompt; the message says what was seen and what was expected."""


def first_problems(problems: Sequence[str]) -> str:
    """Return the first problems of a file, one a line, and how many more there are."""
    num_more = len(problems) - _SHOWN_PROBLEMS
    return "\n  ".join([*problems[:_SHOWN_PROBLEMS], *([f"and {num_more} more"] if num_more > 0 else [])])


def parse_row(
    row: Mapping[str, Any], config: PromptsConfig, notes: Counter[str] | None = None
) -> tuple[Prompt, PromptMetadata]:
    """Return the prompt in a row and its metadata; `notes` counts what a reader of the row may not expect.

    `messages` (a list, or a list as a JSON string) wins over `prompt` (text, or a list), and that over the one of
    QUESTION_COLUMNS, with Alpaca's `input`. All other keys of the row and of its `metadata` end up in the metadata;
    `metadata` wins over the row. `take_answer` says where the expected answer is looked for.

    The verifier is the row's, else its tag's, else `python` for a row with test cases and no expected answer, else the
    config's. Raises RowProblem if the row has no prompt, or a value of the wrong type.
    """
    messages, prompt_keys, prompt_note = _messages(row)
    tools = _tools(row.get("tools"))
    prompt_keys |= {"tools", "metadata"}
    rest: JsonObject = {key: value for key, value in row.items() if key not in prompt_keys} | metadata_of(row)
    try:
        expected_answer, answer_note = take_answer(rest)
        tag, verifier = _take_text(rest, "tag"), _take_text(rest, "verifier")
    except ValueError as error:
        raise RowProblem(str(error)) from error
    if verifier is None:
        tested = expected_answer is None and bool(rest.get("test_cases"))
        verifier = config.verifier_by_tag.get(tag or "") or ("python" if tested else config.verifier)
    if verifier not in VERIFIERS:
        raise RowProblem(f"expected metadata.verifier to be one of {', '.join(VERIFIERS)}, saw {verifier!r}")
    if verifier == "regex" and expected_answer is not None:
        _check_pattern(expected_answer)
    if notes is not None:
        notes.update(filter(None, (prompt_note, answer_note)))
    prompt = Prompt(id=prompt_id(messages, tools), messages=messages, tools=tools)
    return prompt, PromptMetadata(prompt.id, expected_answer, tag, verifier, rest)


def metadata_of(row: Mapping[str, Any]) -> JsonObject:
    """Return the object in the row's `metadata`, which may be JSON text; empty without one."""
    metadata = decoded(row.get("metadata"), "metadata")
    if not isinstance(metadata, dict | None):
        raise RowProblem(f"expected metadata to be an object, saw {brief(metadata)}")
    return metadata or {}


def role_of(name: Any) -> str | None:
    """Return the role that `name` stands for, None for an unknown one."""
    return name if name in _ROLES else _OTHER_ROLES.get(name) if isinstance(name, str) else None


def _messages(row: Mapping[str, Any]) -> tuple[list[Message], set[str], str]:
    """Return the messages of a row, the keys that hold them, and what of these a reader would not expect."""
    key = next((key for key in ("messages", "prompt") if row.get(key) is not None), None)
    if key is not None:
        value = row[key]
        if key == "prompt" and isinstance(value, str):
            value = [{"role": "user", "content": value}]
        return checked_messages(value), {key}, _UNSENT if row.get("system") else ""
    found = [name for name in QUESTION_COLUMNS if row.get(name)]
    if len(found) != 1:
        raise RowProblem(
            f"expected a key `prompt` or `messages`, or one of {', '.join(QUESTION_COLUMNS)}; saw keys: "
            f"{', '.join(row) or 'none'}. What other programs write is read by `stillhouse convert FILE -o FOLDER`"
        )
    (column,) = found
    if column == "instruction" and (row.get("history") or row.get("system")):
        raise RowProblem(
            "history and system of Alpaca's rows are read by `stillhouse convert FILE -o FOLDER --from alpaca`"
        )
    texts = {key: row[key] for key in (column, *(["input"] if column == "instruction" else [])) if row.get(key)}
    if problem := next((key for key, text in texts.items() if not isinstance(text, str)), None):
        raise RowProblem(f"expected {problem} to be a text, saw {brief(texts[problem])}")
    note = f"without `prompt` and `messages`: the prompt is their `{column}`"
    return checked_messages([{"role": "user", "content": "\n".join(texts.values())}]), set(texts), note


def objects_in(value: Any, key: str) -> list[JsonObject]:
    """Return a list of objects; it may be JSON text, and so may each object. Raise RowProblem where it is none."""
    value = decoded(value, key)
    if not isinstance(value, list) or not value:
        raise RowProblem(f"expected {key} to be a list that is not empty, saw {brief(value)}")
    objects = [decoded(item, f"{key}[{index}]") for index, item in enumerate(value)]
    for index, item in enumerate(objects):
        if not isinstance(item, dict):
            raise RowProblem(f"expected {key}[{index}] to be an object, saw {brief(item)}")
    return objects


def checked_messages(value: Any) -> list[Message]:
    """Return messages in OpenAI's form, without null keys; raise RowProblem where they are of another."""
    messages = [_message(f"messages[{index}]", item) for index, item in enumerate(objects_in(value, "messages"))]
    if not any(message["role"] in ("user", "system") for message in messages):
        raise RowProblem("expected a user or system message, saw none")
    return messages


def _message(where: str, value: JsonObject) -> Message:
    role, content = role_of(value.get("role")), value.get("content")
    if role is None:
        raise RowProblem(f"expected {where}.role to be one of {', '.join(_ROLES)}, saw {brief(value.get('role'))}")
    value = {**value, "role": role}
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content):
            raise RowProblem(f"expected each part of {where}.content to be an object with a type, saw {brief(content)}")
    elif content is not None and not isinstance(content, str):
        raise RowProblem(f"expected {where}.content to be text, a list of parts or null, saw {brief(content)}")
    if role == "user" and (not content or (isinstance(content, str) and content.isspace())):
        raise RowProblem(f"expected {where}, a user's, to have content, saw {brief(content)}")
    calls = value.get("tool_calls")
    for call in calls if isinstance(calls, list) else [] if calls is None else [calls]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not all(isinstance(function.get(k), str) for k in ("name", "arguments")):
            raise RowProblem(
                f"expected {where}.tool_calls to be a list of calls whose function has a name and, as a JSON string, "
                f"arguments; saw {brief(calls)}"
            )
    # Struct columns fill absent keys with null.
    return {key: item for key, item in value.items() if item is not None or key == "content"}  # type: ignore[return-value]


def _tools(value: Any) -> list[str] | None:
    value = decoded(value, "tools")
    if value is not None and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise RowProblem(f"expected tools to be a list of tool names, saw {brief(value)}")
    return value


def _check_pattern(expected_answer: str) -> None:
    import regex  # type: ignore[import-untyped]

    try:
        regex.compile(expected_answer)
    except regex.error as error:
        raise RowProblem(
            f"expected the answer of a prompt under `regex` to be a regular expression, saw {brief(expected_answer)}: "
            f"{error}"
        ) from error


def _take_text(rest: JsonObject, key: str) -> str | None:
    """Pop `key` and return its value as text; a blank or null value counts as absent and stays."""
    value = rest.get(key)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, dict | list):
        raise RowProblem(f"expected {key} to be text or a number, saw {brief(value)}")
    del rest[key]
    return as_text(value, key)


def decoded(value: Any, key: str) -> Any:
    """Return `value`, parsed if it is text: columns often hold JSON as text; raise RowProblem where it is none."""
    if not isinstance(value, str):
        return value
    try:
        return exact_json.loads(value)
    except orjson.JSONDecodeError as error:
        raise RowProblem(f"expected {key} to be JSON, saw {brief(value)}: {error}") from error


def brief(value: Any) -> str:
    """Return the type and the start of a value, for a message."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
