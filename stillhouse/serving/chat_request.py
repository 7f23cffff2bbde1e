"""The request for chat completions."""

from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from stillhouse.config.section import ChatTemplateKwargs
from stillhouse.serving.protocol import NEUTRAL, Count, SamplingRequest, invalid_value, not_streamed
from stillhouse.types import JsonObject, Message, ToolSchema


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _NamedFunction(_Strict):
    name: str


class NamedTool(_Strict):
    """The one tool that must be called."""

    type: Literal["function"]
    function: _NamedFunction


class AnswerSchema(_Strict):
    """A JSON schema of answers."""

    name: str
    description: str | None = None
    json_schema: JsonObject = Field(alias="schema")
    strict: bool | None = None
    """Whether a schema with keywords that cannot be enforced is refused, rather than enforced without them."""


class PlainFormat(_Strict):
    """Answers in text, or in JSON objects of any kind."""

    type: Literal["text", "json_object"]


class SchemaFormat(_Strict):
    """Answers in JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: AnswerSchema


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
    }

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[Annotated[dict[str, Any], AfterValidator(_checked_tool)]] = []
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    chat_template_kwargs: ChatTemplateKwargs = {}
    """Values for variables of the chat template, as vLLM and SGLang take them."""
    parallel_tool_calls: bool = True
    """Whether one answer may call several tools."""
    response_format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] = PlainFormat(type="text")
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
        """Most tokens of the completion."""
        return self.max_completion_tokens or self.max_tokens

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise invalid_value("top_logprobs needs logprobs=true", "top_logprobs")
        if self.raw_logprobs and not self.top_logprobs:
            raise invalid_value("raw_logprobs needs top_logprobs", "raw_logprobs")
        if self.top_logprobs and self.stream:
            raise not_streamed("top_logprobs")
        names = [tool["function"]["name"] for tool in self.tools]
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            problem = f"tool_choice names {self.tool_choice.function.name!r}; expected one of the tools {names}"
            raise invalid_value(problem, "tool_choice")
        if self.tool_choice == "required" and not names:
            raise invalid_value("tool_choice is 'required' without tools; add tools or leave it out", "tool_choice")
        return self

    def conversation(self) -> list[Message]:
        """Messages with text parts joined and role `developer` replaced by `system`; ApiError for other content."""
        return [_message(index, message) for index, message in enumerate(self.messages)]

    def offered_tools(self) -> list[ToolSchema]:
        """The tools the model may call."""
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
