"""The grammar of a chat answer, where a request guarantees its form, in llguidance's dialect of Lark.

An answer has the form that `parse_completion` reads: reasoning, where the model reasons, then JSON, or text with blocks
of calls. Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

import json
from collections.abc import Collection
from typing import Final, Literal

from stillhouse.chat.parse import CALL, END_CALL, END_THINK, THINK
from stillhouse.serving.chat_request import ChatRequest, NamedTool, SchemaFormat
from stillhouse.types import JsonObject, ToolSchema

Thought = Literal["open", "possible", "impossible"]
"""Whether an answer begins inside reasoning, may begin with it, or must not."""

_WHITESPACE: Final = r"( |\n[ \t]{0,32})?"
"""Between two parts of JSON: as printers of JSON write it, since a weak model would put in blanks without an end."""
_TEXT: Final = r"TEXT: /(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/"


def chat_grammar(body: ChatRequest, thought: Thought, token_names: Collection[str]) -> str | None:
    """The grammar of answers to a request; None where any text will do.

    `token_names` are the tokenizer's added tokens, which text of a grammar does not match.
    """
    tools = body.offered_tools()
    if isinstance(body.tool_choice, NamedTool):
        tools = [tool for tool in tools if tool["function"]["name"] == body.tool_choice.function.name]
    must_call = body.tool_choice not in ("auto", "none")
    is_text = body.response_format.type == "text"
    are_checked = bool(tools) and (not body.parallel_tool_calls or any(map(_is_strict, tools)))
    if is_text and not must_call and not are_checked:
        return None
    rules = _Rules(token_names)
    many = "*" if body.parallel_tool_calls else "?"
    if must_call:
        answer = 'call ("\\n" call)*' if body.parallel_tool_calls else "call"
    elif is_text:
        answer = f"({rules.text_until(CALL)} call_rest){many} TEXT"
    else:
        answer = "json"
        rules.add("json", _json(*_answer_schema(body)))
        if tools:
            answer += ' | call ("\\n" call)*' if body.parallel_tool_calls else " | call"
    if tools:
        rules.add("call", f"{rules.tag(CALL)} call_rest")
        rules.add("call_rest", f"({' | '.join(f'tool{i}' for i in range(len(tools)))}) {rules.tag(END_CALL)}")
    for index, tool in enumerate(tools):
        name = json.dumps(tool["function"]["name"], ensure_ascii=False)
        begin = _quoted(f'\n{{"name": {name}, "arguments": ')
        rules.add(f"tool{index}", f'{begin} arguments{index} "}}\\n"')
        parameters = {"type": "object", **tool["function"].get("parameters", {})}
        rules.add(f"arguments{index}", _json(parameters, is_strict=_is_strict(tool)))
    if thought != "impossible":
        opened = "" if thought == "open" else f"{rules.tag(THINK)} "
        rules.add("thought", f"{opened}{rules.text_until(END_THINK)} /\\n{{0,2}}/")
    start = {"open": "thought answer", "possible": "thought? answer", "impossible": "answer"}[thought]
    return "\n".join(["%llguidance {}", f"start: {start}", f"answer: {answer}", *rules.lines, _TEXT, ""])


def thought_after(prompt_end: str, template: str) -> Thought:
    """Whether an answer to a prompt reasons, by the prompt's end and the chat template."""
    end = prompt_end.rstrip()
    if end.endswith(THINK):
        return "open"
    return "impossible" if end.endswith(END_THINK) or THINK not in template else "possible"


class _Rules:
    """Rules of a grammar over a tokenizer with these added tokens."""

    def __init__(self, token_names: Collection[str]) -> None:
        self._token_names = token_names
        self.lines: list[str] = []

    def add(self, name: str, expansion: str) -> None:
        self.lines.append(f"{name}: {expansion}")

    def tag(self, tag: str) -> str:
        return tag if tag in self._token_names else _quoted(tag)

    def text_until(self, tag: str) -> str:
        """What matches text up to the first `tag`, and the tag."""
        if tag in self._token_names:
            return f"TEXT {tag}"
        name = f"until_{tag.strip('</>')}"
        self.lines.append(f"{name}[lazy]: TEXT {_quoted(tag)}")
        return name


def _answer_schema(body: ChatRequest) -> tuple[JsonObject, bool]:
    if isinstance(body.response_format, SchemaFormat):
        described = body.response_format.json_schema
        return described.json_schema, bool(described.strict)
    return {"type": "object"}, True


def _is_strict(tool: ToolSchema) -> bool:
    return bool(tool["function"].get("strict"))


def _json(schema: JsonObject, is_strict: bool) -> str:
    """JSON that fits a schema; keywords that cannot be enforced are errors if it is strict, else passed over."""
    options = {"whitespace_pattern": _WHITESPACE, "lenient": not is_strict}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
