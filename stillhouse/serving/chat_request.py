"""The request for chat completions."""

from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import AfterValidator, Field, model_validator

from stillhouse.config.section import ChatTemplateKwargs
from stillhouse.serving.protocol import NEUTRAL, Count, SamplingRequest, invalid_value
from stillhouse.types import Message, ToolSchema


def _checked_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"a tool of type {tool.get('type')!r}; expected type 'function' and a function with a name")
    return tool


class ChatRequest(SamplingRequest):
    """Body of POST /v1/chat/completions."""

    _neutral: ClassVar[dict[str, list[Any]]] = {
        **NEUTRAL,
        "prompt_logprobs": [],
        "echo": [False],
        "tool_choice": ["auto", "none"],
        "parallel_tool_calls": [True],
        "response_format": [{"type": "text"}],
    }

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[Annotated[dict[str, Any], AfterValidator(_checked_tool)]] = []
    tool_choice: Literal["auto", "none"] = "auto"
    chat_template_kwargs: ChatTemplateKwargs = {}
    """Values for variables of the chat template, as vLLM and SGLang take them."""
    max_tokens: int | None = Field(default=None, ge=1)
    """None samples until the context ends."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Newer name of `max_tokens`; wins over it."""
    logprobs: bool = False
    top_logprobs: Count = 0
    raw_logprobs: bool = False
    """Extension: log-probabilities beside `top_logprobs` are under softmax(logits), whatever the temperature, as those
    of a vLLM server by default."""

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise invalid_value("top_logprobs needs logprobs=true", "top_logprobs")
        if self.raw_logprobs and not self.top_logprobs:
            raise invalid_value("raw_logprobs needs top_logprobs", "raw_logprobs")
        return self

    def conversation(self) -> list[Message]:
        """Return messages with text parts joined, `developer` as `system`; raise ApiError for other content."""
        return [_message(index, message) for index, message in enumerate(self.messages)]

    def offered_tools(self) -> list[ToolSchema]:
        return [] if self.tool_choice == "none" else cast(list[ToolSchema], self.tools)


def _message(index: int, message: dict[str, Any]) -> Message:
    role = message.get("role")
    role = "system" if role == "developer" else role
    place = f"messages[{index}]"
    if role not in ("system", "user", "assistant", "tool"):
        expected = "system, developer, user, assistant or tool"
        raise invalid_value(f"{place}.role is {role!r}; expected {expected}", f"{place}.role")
    content = message.get("content")
    if isinstance(content, list):
        kinds = {part.get("type") for part in content if isinstance(part, dict)}
        if kinds - {"text"} or not all(isinstance(part, dict) for part in content):
            seen = sorted(map(str, kinds))
            problem = f"{place}.content has parts of type {seen}; this model takes text only"
            raise invalid_value(problem, f"{place}.content")
        content = "".join(part["text"] for part in content)
    return {**message, "role": role, "content": content}  # type: ignore[typeddict-item]
