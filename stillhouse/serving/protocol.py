"""Requests and errors of the OpenAI API as this server supports them.

Unknown fields are ignored, as by other servers. Known but unsupported fields that would change the result are refused:
an ignored `stop` or `response_format` would give a wrong answer.
"""

from typing import Annotated, Any, ClassVar, Final, Literal, cast

from pydantic import AliasChoices, BaseModel, Field, model_validator

from stillhouse.types import Message, ToolSchema

MAX_TOP_LOGPROBS: Final = 20
"""Most alternatives of a token; vLLM's default of `--max-logprobs`."""

Probability = Annotated[float, Field(gt=0.0, le=1.0)]
Temperature = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


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
    """The answer to a request whose field `param` has a value that makes no sense."""
    return ApiError(400, message, code="invalid_value", param=param)


class _SamplingRequest(BaseModel):
    _neutral: ClassVar[dict[str, list[Any]]] = {
        "stream": [False],
        "stop": [[]],
        "logit_bias": [{}],
        "presence_penalty": [0],
        "frequency_penalty": [0],
        "top_k": [0, -1],
        "min_p": [0],
        "repetition_penalty": [1],
        "best_of": [1],
        "suffix": [""],
    }
    """Unsupported fields with their accepted, neutral values."""

    model: str
    temperature: Temperature = 1.0
    top_p: Probability = 1.0
    n: int = Field(default=1, ge=1, le=128)
    seed: int | None = None
    """None takes a fresh one."""
    return_token_ids: bool = False
    """vLLM's extension: return token ids of prompt and completions."""
    ignore_eos: bool = False
    """vLLM's extension: continue after an end-of-turn token until `max_tokens`."""
    stop_token_ids: list[int] = []
    """vLLM's extension: further tokens that end a completion, whatever `ignore_eos` says."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if value is not None}
            for field, neutral in cls._neutral.items():
                if field in data and data[field] not in neutral:
                    raise ValueError(f"{field}={data[field]!r} is not supported by this server; leave {field!r} out")
        return data


class ChatRequest(_SamplingRequest):
    """Body of POST /v1/chat/completions."""

    _neutral: ClassVar[dict[str, list[Any]]] = {
        **_SamplingRequest._neutral,
        "response_format": [{"type": "text"}],
        "prompt_logprobs": [],
        "echo": [False],
    }

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["auto", "none"] = "auto"
    max_tokens: int | None = Field(default=None, ge=1)
    """None samples until the context ends."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Newer name of `max_tokens`; wins over it."""
    logprobs: bool = False
    top_logprobs: Count = 0

    def conversation(self) -> list[Message]:
        """Messages with text parts joined and role `developer` replaced by `system`; ApiError for other content."""
        return [_message(index, message) for index, message in enumerate(self.messages)]

    def offered_tools(self) -> list[ToolSchema]:
        """The tools the model may call."""
        return [] if self.tool_choice == "none" else cast(list[ToolSchema], self.tools)


class CompletionRequest(_SamplingRequest):
    """Body of POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int = Field(default=16, ge=0)
    """With `echo` or `prompt_logprobs` 0 scores the prompt without sampling."""
    echo: bool = False
    """Prepend the prompt to text and log-probabilities."""
    logprobs: Count | None = None
    prompt_logprobs: Count | None = None
    """vLLM's extension: log-probabilities of the prompt's tokens with so many alternatives."""
    return_tokens_as_token_ids: bool = False
    """vLLM's extension: tokens written as `token_id:<id>`, since their text may be ambiguous."""

    def prompts(self) -> list[str | list[int]]:
        """The prompts, at least one, each a text or token ids."""
        is_one = isinstance(self.prompt, str) or not self.prompt or isinstance(self.prompt[0], int)
        return cast(list[str | list[int]], [self.prompt] if is_one else self.prompt)


class LoadAdapterRequest(BaseModel):
    """Body of vLLM's POST /v1/load_lora_adapter."""

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False
    """Replace an adapter of this name."""


class UnloadAdapterRequest(BaseModel):
    """Body of vLLM's POST /v1/unload_lora_adapter."""

    lora_name: str = Field(min_length=1)


class _ReloadArguments(BaseModel):
    weights_path: str


class CollectiveCall(BaseModel):
    """Body of vLLM's POST /collective_rpc, of whose methods this server has one."""

    method: Literal["reload_weights"]
    arguments: _ReloadArguments = Field(validation_alias=AliasChoices("kwargs"))


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
