"""What a row of a source says: a conversation with its tools, in whichever of the common forms it is written.

    messages        OpenAI's form, as a list or as JSON text; `tools` beside it
    conversations   ShareGPT's: `from` and `value`
    prompt, completion   each a text, or messages

Text stays as it is written: reasoning or calls inside a message's content are rendered as they are.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import orjson

from stillhouse.prompts.row import RowProblem
from stillhouse.store.fingerprint import prompt_id
from stillhouse.types import JsonObject, Message, Prompt, PromptMetadata, ToolSchema

CONVERSATION_COLUMNS: Final = ("messages", "conversations", "prompt")
"""Keys of which a row has one."""
COLUMNS: Final = (*CONVERSATION_COLUMNS, "completion", "tools", "prompt_id", "tag")
"""Keys of a row that are read."""
_ROLES: Final = ("system", "user", "assistant", "tool")
_SHAREGPT: Final = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}


class Conversation(NamedTuple):
    """A conversation to train on."""

    messages: list[Message]
    tools: list[ToolSchema]
    prompt_id: str
    """The row's own, else the hash of what comes before the first answer, and of the tools' names."""
    tag: str | None
    excluded: frozenset[int]
    """Indices of assistant messages that the row gives the weight 0, as OpenAI's form has it: context alone."""


def conversation_of(row: JsonObject) -> Conversation:
    """The conversation in a row.

    Raises:
        RowProblem: there is none; the message says what was seen, what was expected and what to do.
    """
    messages = _messages(row)
    if messages[0]["role"] == "assistant":
        raise RowProblem(
            "the conversation begins with the assistant, so that there is nothing to answer; expected a system or user "
            "message first. Put one before it, or drop the row"
        )
    tools = _tools(row.get("tools"))
    excluded = frozenset(index for index, message in enumerate(messages) if message.pop("weight", None) == 0)
    first = next((index for index, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    own, tag = row.get("prompt_id"), row.get("tag")
    return Conversation(
        messages=messages,  # type: ignore[arg-type]
        tools=tools,
        prompt_id=own if isinstance(own, str) and own else _prompt_id(messages[:first], tools),
        tag=tag if isinstance(tag, str) else None,
        excluded=excluded,
    )


def _prompt_id(messages: Sequence[Any], tools: Sequence[ToolSchema]) -> str:
    return prompt_id(messages, [tool["function"]["name"] for tool in tools] or None)


def _messages(row: JsonObject) -> list[JsonObject]:
    if row.get("messages") is not None:
        return _listed(row["messages"], "messages")
    if row.get("conversations") is not None:
        return [
            _from_sharegpt(item, f"conversations[{index}]")
            for index, item in enumerate(_items(row["conversations"], "conversations"))
        ]
    if row.get("prompt") is not None and row.get("completion") is not None:
        return [
            *_said(row["prompt"], "prompt", "user"),
            *_said(row["completion"], "completion", "assistant"),
        ]
    seen = ", ".join(row) or "none"
    raise RowProblem(
        f"expected `messages`, `conversations`, or `prompt` and `completion`; saw the keys {seen}. Write the row in "
        "one of these forms, or try `stillhouse convert`"
    )


def _said(value: Any, key: str, role: str) -> list[JsonObject]:
    return [{"role": role, "content": value}] if isinstance(value, str) else _listed(value, key)


def _listed(value: Any, key: str) -> list[JsonObject]:
    return [_message(item, f"{key}[{index}]") for index, item in enumerate(_items(value, key))]


def _items(value: Any, key: str) -> list[Any]:
    value = _decoded(value)
    if not isinstance(value, list) or not value:
        raise RowProblem(f"expected {key} to be a list that is not empty, or one as JSON text; saw {_brief(value)}")
    return [_decoded(item) for item in value]


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
    """What JSON text says; anything else as it is."""
    if isinstance(value, str):
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(value)
    return value


def _brief(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def validation_prompts(rows: Iterable[JsonObject], most: int) -> tuple[list[Prompt], dict[str, PromptMetadata]]:
    """The first `most` distinct prompts whose answers can be verified, and what they are verified against.

    Args:
        rows: validation rows of a dataset; a prompt is what stands before the first assistant message.
        most: prompts wanted; there may be fewer.
    """
    prompts: dict[str, Prompt] = {}
    metadata: dict[str, PromptMetadata] = {}
    for row in rows:
        if len(prompts) == most:
            break
        prompt_id = row["prompt_id"]
        if row.get("expected_answer") is None or prompt_id in prompts:
            continue
        said = next((place for place, m in enumerate(row["messages"]) if m["role"] == "assistant"), None)
        prompts[prompt_id] = Prompt(
            prompt_id, row["messages"][:said], [tool["function"]["name"] for tool in row["tools"] or ()]
        )
        metadata[prompt_id] = PromptMetadata(
            prompt_id, row["expected_answer"], row.get("tag"), row["verifier"], row.get("metadata") or {}
        )
    return list(prompts.values()), metadata
