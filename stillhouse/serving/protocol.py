"""Errors of the OpenAI API, what all requests for completions have in common, and the requests for texts and chats.

Every field is honoured or refused by name: one that is ignored would give an answer to another request than was sent.
"""

from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from stillhouse.config.section import ChatTemplateKwargs
from stillhouse.types import Message, ToolSchema

MAX_TOP_LOGPROBS: Final = 20
"""Most alternatives of a token; vLLM's default of `--max-logprobs`."""

Probability = Annotated[float, Field(gt=0.0, le=1.0)]
Temperature = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
StopString = Annotated[str, Field(min_length=1)]

_LABELS: Final = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Fields that name a request or its sender and mean nothing for the answer."""
NEUTRAL: Final[dict[str, list[Any]]] = {
    "logit_bias": [{}],
    "presence_penalty": [0],
    "frequency_penalty": [0],
    "top_k": [0, -1],
    "min_p": [0],
    "repetition_penalty": [1],
    "best_of": [1],
    "suffix": [""],
    "store": [False],
    "service_tier": ["auto", "default"],
    "modalities": [["text"]],
    "stream": [False],
}
"""Unsupported fields with the values that change nothing, which clients send as defaults."""
_ELSEWHERE: Final = frozenset({"stream", "response_format", "tool_choice", "parallel_tool_calls"})
ELSEWHERE: Final = "serve the model with vLLM or `transformers serve`"


class ApiError(Exception):
    """An answer with an error body in OpenAI's form."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")
        kind = kind if status < 500 else "server_error"
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def invalid_value(message: str, param: str | None) -> ApiError:
    """Return the answer to a request whose field `param` has a value that makes no sense."""
    return ApiError(400, message, code="invalid_value", param=param)


class SamplingRequest(BaseModel):
    """Fields of all requests for completions; ApiError for a known field whose value is not supported."""

    model_config = ConfigDict(extra="forbid")
    _neutral: ClassVar[dict[str, list[Any]]] = NEUTRAL

    model: str
    temperature: Temperature = 1.0
    top_p: Probability = 1.0
    n: int = Field(default=1, ge=1, le=128)
    seed: int | None = None
    """None takes a fresh one."""
    stop: Annotated[list[StopString], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)] = Field(
        default=[], max_length=4
    )
    """Texts before the first of which the completion ends."""
    return_token_ids: bool = False
    """vLLM's extension: return token ids of prompt and completions."""
    return_tokens_as_token_ids: bool = False
    """vLLM's extension: tokens of log-probabilities written as `token_id:<id>`, since their text may be ambiguous."""
    ignore_eos: bool = False
    """vLLM's extension: continue after an end-of-turn token until `max_tokens`."""
    skip_special_tokens: bool = True
    """vLLM's extension: whether special tokens that do not end a completion are left out of its text."""
    stop_token_ids: list[int] = []
    """vLLM's extension: further tokens that end a completion, whatever `ignore_eos` says."""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = {key: value for key, value in data.items() if value is not None and key not in _LABELS}
        for field in cls._neutral.keys() & data.keys():
            value = data[field] if field in cls.model_fields else data.pop(field)
            if value not in cls._neutral[field]:
                problem = f"{field}={value!r} is not supported by this server; leave {field!r} out"
                problem += f", or {ELSEWHERE}" if field in _ELSEWHERE else ""
                raise ApiError(400, problem, code="unsupported_value", param=field)
        return data


class CompletionRequest(SamplingRequest):
    """Body of POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int = Field(default=16, ge=0)
    """With `echo` or `prompt_logprobs` 0 scores the prompt without sampling."""
    echo: bool = False
    """Prepend the prompt to text and log-probabilities."""
    logprobs: Count | None = None
    prompt_logprobs: Count | None = None
    """vLLM's extension: log-probabilities of the prompt's tokens with so many alternatives."""

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, at least one, each a text or token ids."""
        is_one = isinstance(self.prompt, str) or not self.prompt or isinstance(self.prompt[0], int)
        return cast(list[str | list[int]], [self.prompt] if is_one else self.prompt)

    @model_validator(mode="after")
    def _check_scores(self) -> Self:
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise invalid_value("max_tokens is 0; expected at least 1, or echo or prompt_logprobs", "max_tokens")
        return self


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
