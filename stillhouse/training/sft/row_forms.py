"""Parses a row of a source, in one of the common forms, to a conversation with its tools.

    messages        OpenAI's form, as a list or as JSON text; `tools` beside it
    conversations   ShareGPT's: `from` and `value`
    prompt, completion   each a text, or messages

Text is not interpreted: reasoning or calls inside a message's content are rendered as they are.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import orjson

from stillhouse.prompts.row import RowProblem
from stillhouse.store import exact_json
from stillhouse.store.fingerprint import prompt_id
from stillhouse.types import JsonObject, Message, Prompt, PromptMetadata, ToolSchema

CONVERSATION_COLUMNS: Final = ("messages", "conversations", "prompt")
"""A row has one of these keys."""
COLUMNS: Final = (*CONVERSATION_COLUMNS, "completion", "tools", "prompt_id", "tag")
"""All keys that are read."""
_ROLES: Final = ("system", "user", "assistant", "tool")
_SHAREGPT: Final = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}


class TrainingConversation(NamedTuple):
    messages: list[Message]
    tools: list[ToolSchema]
    prompt_id: str
    """The row's own, or else the hash of the messages before the first answer and of the tools' names."""
    tag: str | None
    row_id: str | None
    """The row's own, where a dataset of this project has one."""
    excluded: frozenset[int]
    """Indices of assistant messages with weight 0 (OpenAI's form), which are only context."""


def parse_conversation(row: JsonObject) -> TrainingConversation:
    """The conversation in a row; raises a RowProblem where it is none."""
    messages: list[Any] = _messages(row)
    if messages[0]["role"] == "assistant":
        raise RowProblem(
            "the conversation begins with the assistant, so that there is nothing to answer; expected a system or user "
            "message first. Put one before it, or drop the row"
        )
    tools = _tools(row.get("tools"))
    excluded = frozenset(index for index, message in enumerate(messages) if message.pop("weight", None) == 0)
    first = next((index for index, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    row_id, tag = row.get("prompt_id"), row.get("tag")
    names = [tool["function"]["name"] for tool in tools] or None
    return TrainingConversation(
        messages=messages,
        tools=tools,
        prompt_id=row_id if isinstance(row_id, str) and row_id else prompt_id(messages[:first], names),
        tag=tag if isinstance(tag, str) else None,
        row_id=row.get("id") if isinstance(row.get("id"), str) else None,
        excluded=excluded,
    )


def _messages(row: JsonObject) -> list[JsonObject]:
    if row.get("messages") is not None:
        return _parsed(row["messages"], "messages", _message)
    if row.get("conversations") is not None:
        return _parsed(row["conversations"], "conversations", _from_sharegpt)
    if row.get("prompt") is not None and row.get("completion") is not None:
        return [
            *_text_or_messages(row["prompt"], "prompt", "user"),
            *_text_or_messages(row["completion"], "completion", "assistant"),
        ]
    seen = ", ".join(row) or "none"
    raise RowProblem(
        f"expected `messages`, `conversations`, or `prompt` and `completion`; saw the keys {seen}. Write the row in "
        "one of these forms, or try `stillhouse convert`"
    )


def _text_or_messages(value: Any, key: str, role: str) -> list[JsonObject]:
    return [{"role": role, "content": value}] if isinstance(value, str) else _parsed(value, key, _message)


def _parsed(value: Any, key: str, parse: Callable[[Any, str], JsonObject]) -> list[JsonObject]:
    items = _decoded(value)
    if not isinstance(items, list) or not items:
        raise RowProblem(f"expected {key} to be a list that is not empty, or one as JSON text; saw {_brief(items)}")
    return [parse(_decoded(item), f"{key}[{index}]") for index, item in enumerate(items)]


def _message(value: Any, where: str) -> JsonObject:
    if not isinstance(value, dict):
        raise RowProblem(f"expected {where} to be an object with role and content, saw {_brief(value)}")
    if value.get("role") not in _ROLES:
        raise RowProblem(f"expected {where}.role to be one of {', '.join(_ROLES)}; saw {_brief(value.get('role'))}")
    if not isinstance(value.get("content"), str | list | None):
        raise RowProblem(f"expected {where}.content to be text, parts or null; saw {_brief(value['content'])}")
    for index, part in enumerate(value["content"] if isinstance(value.get("content"), list) else ()):
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise RowProblem(
                f"expected {where}.content[{index}] to be a part with a text, since students read nothing else; saw "
                f"{_brief(part)}. Drop the row"
            )
    return {name: part for name, part in value.items() if part is not None or name == "content"}


def _from_sharegpt(value: Any, where: str) -> JsonObject:
    role = _SHAREGPT.get(str(value.get("from"))) if isinstance(value, dict) else None
    if role is None or not isinstance(value.get("value"), str):
        raise RowProblem(
            f"expected {where} to have `from`, one of {', '.join(_SHAREGPT)}, and `value`, a text; saw "
            f"{_brief(value)}. Write conversations with tool calls as `messages`"
        )
    return {"role": role, "content": value["value"]}


def _tools(value: Any) -> list[ToolSchema]:
    if value in (None, "", []):
        return []
    value = _decoded(value)
    tools = [_decoded(item) for item in value] if isinstance(value, list) else [value]
    shown: list[Any] = []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RowProblem(
                f"expected tools to be a list of schemas with a function and its name; saw {_brief(tool)}. Tools by "
                "name alone are not enough to train on: write their schemas"
            )
        shown.append(tool if "function" in tool else {"type": "function", "function": tool})
    return shown


def _decoded(value: Any) -> Any:
    """Decodes JSON text; returns anything else as it is."""
    if isinstance(value, str):
        with suppress(orjson.JSONDecodeError):
            return exact_json.loads(value)
    return value


def _brief(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def validation_prompts(rows: Iterable[JsonObject], max_prompts: int) -> tuple[list[Prompt], dict[str, PromptMetadata]]:
    """The first `max_prompts` distinct prompts of validation rows with an expected answer, and their metadata."""
    prompts: dict[str, Prompt] = {}
    metadata: dict[str, PromptMetadata] = {}
    for row in rows:
        if len(prompts) == max_prompts:
            break
        prompt_id = row["prompt_id"]
        if row.get("expected_answer") is None or prompt_id in prompts:
            continue
        first_answer = next((index for index, m in enumerate(row["messages"]) if m["role"] == "assistant"), None)
        prompts[prompt_id] = Prompt(
            prompt_id, row["messages"][:first_answer], [tool["function"]["name"] for tool in row["tools"] or ()]
        )
        metadata[prompt_id] = PromptMetadata(
            prompt_id, row["expected_answer"], row.get("tag"), row["verifier"], row.get("metadata") or {}
        )
    return list(prompts.values()), metadata
