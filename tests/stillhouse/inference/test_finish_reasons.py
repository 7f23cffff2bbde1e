import pytest

from stillhouse.inference.finish_reasons import stop_of
from stillhouse.types import StopReason

WORDS = {
    StopReason.ANSWERED: "stop STOP FinishReason.STOP tool_calls tool-calls function_call end_turn stop_sequence "
    "tool_use COMPLETE TOOL_CALL eos eos_token FINISH_REASON_UNSPECIFIED unknown",
    StopReason.LENGTH: "length LENGTH max_tokens MAX_TOKENS max_output_tokens max_length model_length context_length "
    "model_context_window_exceeded ERROR_LIMIT",
    StopReason.CONTENT_FILTER: "content_filter content_filter:RECITATION safety SAFETY RECITATION BLOCKLIST "
    "PROHIBITED_CONTENT SPII sensitive refusal guardrail_intervened content_filtered ERROR_TOXIC",
    StopReason.MALFORMED: "MALFORMED_FUNCTION_CALL function_call_filter:MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL",
    StopReason.ERROR: "error abort insufficient_system_resource network_error server_overload",
    StopReason.UNFINISHED: "OTHER pause_turn repetition_truncation brand-new",
}


@pytest.mark.parametrize(("word", "stop"), [(word, stop) for stop, words in WORDS.items() for word in words.split()])
def test_a_word_in_any_spelling_says_how_a_completion_ended(word: str, stop: StopReason) -> None:
    assert stop_of(word.replace(":", ": ")) is stop
