"""Chat completions as OpenAI's newer models take them: the package's types say which keys there are."""

from collections.abc import Callable
from typing import Any, Final, get_type_hints

from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from tests.provider import ReceivedRequest, Reply

_KNOWN: Final = frozenset(get_type_hints(CompletionCreateParamsNonStreaming))
_EFFORTS: Final = {
    "gpt-5-nano": ("minimal", "low", "medium", "high"),
    "gpt-5-mini": ("minimal", "low", "medium", "high"),
    "gpt-5.2": ("none", "low", "medium", "high", "xhigh"),
}
_RESPONSES_ALONE: Final = ("internal-pro",)


def strict_openai(answer: Callable[[ReceivedRequest], Reply]) -> Callable[[ReceivedRequest], Reply]:
    """Return a script that refuses what the model of a request does not take, and else gives the `answer`."""

    def script(request: ReceivedRequest) -> Reply:
        refused = _refused(request.body)
        return answer(request) if refused is None else refused

    return script


def _refused(body: dict[str, Any]) -> Reply | None:
    model = body["model"]
    if model in _RESPONSES_ALONE:
        message = "This model is only supported in v1/responses and not in v1/chat/completions."
        return _error(message, "model", None, status=404)
    if model not in _EFFORTS:
        message = f"The model `{model}` does not exist or you do not have access to it."
        return _error(message, None, "model_not_found", status=404)
    if unknown := sorted(body.keys() - _KNOWN):
        return _error(f"Unknown parameter: '{unknown[0]}'.", unknown[0], "unknown_parameter")
    if "max_tokens" in body:
        message = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return _error(message, "max_tokens", "unsupported_parameter")
    efforts = _EFFORTS[model]
    effort = body.get("reasoning_effort", "none" if "none" in efforts else "medium")
    if effort not in efforts:
        listed = ", ".join(f"'{one}'" for one in efforts)
        message = f"Unsupported value: '{effort}' is not supported with the '{model}' model. Supported values are: "
        return _error(f"{message}{listed}.", "reasoning_effort", "unsupported_value")
    if effort != "none":
        if (temperature := body.get("temperature", 1)) != 1:
            message = f"Unsupported value: 'temperature' does not support {temperature} with this model. Only the "
            return _error(f"{message}default (1) value is supported.", "temperature", "unsupported_value")
        for name in ("top_p", "logprobs", "top_logprobs", "presence_penalty", "frequency_penalty", "stop"):
            if name in body:
                message = f"Unsupported parameter: '{name}' is not supported with this model."
                return _error(message, name, "unsupported_parameter")
    return None


def _error(message: str, param: str | None, code: str | None, *, status: int = 400) -> Reply:
    return Reply({"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}, status)
