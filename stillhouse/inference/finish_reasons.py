"""The meaning of endpoints' finish reasons: one table for all that read them.

Words of OpenAI, Anthropic, Gemini, Mistral, Cohere, DeepSeek, Z.ai, Bedrock (Converse) and watsonx by their API
references, of TGI, vLLM and SGLang by their source. Words are matched whatever their case, a Python enum's prefix
(`FinishReason.STOP`) or what a gateway adds behind a colon (`content_filter: RECITATION`).
"""

from typing import Final

from stillhouse.types import StopReason

UNSTATED: Final = "unknown"
"""Stands for a finish reason that is null or absent, as some local servers leave it."""
_WORDS: Final = {
    StopReason.ANSWERED: f"{UNSTATED} finish_reason_unspecified stop tool_calls function_call end_turn stop_sequence "
    "tool_use tool_call complete eos eos_token",
    StopReason.LENGTH: "length max_tokens model_length max_length max_output_tokens max_new_tokens token_limit "
    "context_length context_length_exceeded model_context_window_exceeded error_limit",
    StopReason.CONTENT_FILTER: "content_filter content_filtered safety recitation blocklist prohibited_content spii "
    "language model_armor image_safety sensitive refusal guardrail_intervened error_toxic",
    StopReason.MALFORMED: "malformed_function_call function_call_filter unexpected_tool_call too_many_tool_calls "
    "malformed_response malformed_tool_use malformed_model_output",
    StopReason.ERROR: "error abort aborted cancelled insufficient_system_resource network_error server_error "
    "server_overload overloaded timeout time_limit",
}
_STOPS: Final = {word: stop for stop, words in _WORDS.items() for word in words.split()}


def stop_of(finish_reason: str) -> StopReason:
    """Return why a rollout stops whose last completion has this finish reason.

    `ANSWERED` where the model ended its turn, be it to call tools; `ERROR` where the endpoint failed amid it;
    `UNFINISHED` where the table does not know the word, so that the completion may be cut.
    """
    word = finish_reason.lower().replace("-", "_").partition(":")[0].rpartition(".")[2].strip()
    return _STOPS.get(word, StopReason.UNFINISHED)
