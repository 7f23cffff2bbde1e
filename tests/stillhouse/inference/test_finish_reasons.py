import pytest

from stillhouse.inference.finish_reasons import Ending, ending_of

WORDS = {
    Ending.WHOLE: "stop STOP FinishReason.STOP tool_calls tool-calls function_call end_turn stop_sequence tool_use "
    "COMPLETE TOOL_CALL eos eos_token FINISH_REASON_UNSPECIFIED unknown",
    Ending.CUT: "length LENGTH max_tokens MAX_TOKENS max_output_tokens max_length model_length context_length "
    "model_context_window_exceeded ERROR_LIMIT",
    Ending.WITHHELD: "content_filter content_filter:RECITATION safety SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT "
    "SPII sensitive refusal guardrail_intervened content_filtered ERROR_TOXIC",
    Ending.MALFORMED: "MALFORMED_FUNCTION_CALL function_call_filter:MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL",
    Ending.BROKEN: "error abort insufficient_system_resource network_error server_overload",
    Ending.UNKNOWN: "OTHER pause_turn repetition_truncation brand-new",
}


@pytest.mark.parametrize(("word", "ending"), [(word, end) for end, words in WORDS.items() for word in words.split()])
def test_a_word_in_any_spelling_says_how_a_completion_ended(word: str, ending: Ending) -> None:
    assert ending_of(word.replace(":", ": ")) is ending
