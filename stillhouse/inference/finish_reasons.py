"""How a completion ended, by the finish reason that its endpoint gives.

Words of OpenAI, Anthropic, Gemini, Mistral, Cohere, DeepSeek, Z.ai, Bedrock (Converse) and watsonx by their API
references, of TGI, vLLM and SGLang by their source. Words are matched whatever their case, a Python enum's prefix
(`FinishReason.STOP`) or what a gateway adds behind a colon (`content_filter: RECITATION`).
"""

from enum import StrEnum
from typing import Final


class Ending(StrEnum):
    """See `ending_of`. Closed: all that read finish reasons decide by these."""

    WHOLE = "whole"
    """The model ended its turn."""
    CUT = "cut"
    """It reached a bound on tokens, its own or the context's."""
    WITHHELD = "withheld"
    """A provider's filter stopped it."""
    MALFORMED = "malformed"
    """The model wrote a call or an answer that its endpoint could not read."""
    BROKEN = "broken"
    """The endpoint failed amid it."""
    UNKNOWN = "unknown"
    """No word of the table, so that it may be cut."""


UNSTATED: Final = "unknown"
"""What stands for a finish reason that is null or absent, as some local servers leave it."""
_WORDS: Final = {
    Ending.WHOLE: f"{UNSTATED} finish_reason_unspecified stop tool_calls function_call end_turn stop_sequence tool_use "
    "tool_call complete eos eos_token",
    Ending.CUT: "length max_tokens model_length max_length max_output_tokens max_new_tokens token_limit context_length "
    "context_length_exceeded model_context_window_exceeded error_limit",
    Ending.WITHHELD: "content_filter content_filtered safety recitation blocklist prohibited_content spii language "
    "model_armor image_safety sensitive refusal guardrail_intervened error_toxic",
    Ending.MALFORMED: "malformed_function_call function_call_filter unexpected_tool_call too_many_tool_calls "
    "malformed_response malformed_tool_use malformed_model_output",
    Ending.BROKEN: "error abort aborted cancelled insufficient_system_resource network_error server_error "
    "server_overload overloaded timeout time_limit",
}
_ENDINGS: Final = {word: ending for ending, words in _WORDS.items() for word in words.split()}


def ending_of(finish_reason: str) -> Ending:
    """How a completion with this finish reason ended."""
    word = finish_reason.lower().replace("-", "_").partition(":")[0].rpartition(".")[2].strip()
    return _ENDINGS.get(word, Ending.UNKNOWN)
