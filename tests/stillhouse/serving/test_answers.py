from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.serving.answers import Completion, chat_choice, first_call_index
from stillhouse.serving.generation import Generation
from stillhouse.serving.protocol import ChatRequest

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 2"}}\n</tool_call>'
USER = {"role": "user", "content": "x"}


def request(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [USER], "tools": [CALCULATOR_SCHEMA], **fields})


def choice(tokenizer: PreTrainedTokenizerBase, text: str, body: ChatRequest, *, is_cut: bool = False) -> dict[str, Any]:
    ids = tokenizer(text)["input_ids"] + ([] if is_cut else [tokenizer.eos_token_id])
    generation = Generation(ids, [0.0] * len(ids), "length" if is_cut else "stop")
    return chat_choice(0, body, Completion(generation, text), tokenizer)


def test_a_call_is_parsed_and_is_the_reason_to_finish(tokenizer: PreTrainedTokenizerBase) -> None:
    answer = choice(tokenizer, CALL, request())
    assert answer["finish_reason"] == "tool_calls"
    function = {"name": "calculator", "arguments": '{"expression": "1 + 2"}'}
    calls = [{"id": "call_0", "type": "function", "function": function}]
    assert answer["message"] == {"role": "assistant", "content": None, "tool_calls": calls}


def test_an_answer_shows_no_end_of_turn_token_but_token_ids_keep_it(tokenizer: PreTrainedTokenizerBase) -> None:
    answer = choice(tokenizer, "The answer is 3.", request(return_token_ids=True))
    assert answer["message"] == {"role": "assistant", "content": "The answer is 3."}
    assert answer["finish_reason"] == "stop"
    assert answer["token_ids"][-1] == tokenizer.eos_token_id


def test_a_cut_call_is_malformed_and_the_reason_stays_length(tokenizer: PreTrainedTokenizerBase) -> None:
    answer = choice(tokenizer, '<tool_call>\n{"name": "calc', request(), is_cut=True)
    assert answer["finish_reason"] == "length"
    assert answer["message"]["tool_calls"][0]["function"]["name"] == MALFORMED_CALL


@pytest.mark.parametrize("fields", [{"tools": []}, {"tool_choice": "none"}])
def test_calls_are_not_parsed_where_no_tools_are_offered(
    tokenizer: PreTrainedTokenizerBase, fields: dict[str, Any]
) -> None:
    answer = choice(tokenizer, CALL, request(**fields))
    assert (answer["message"]["content"], answer["finish_reason"]) == (CALL, "stop")


def test_call_ids_are_new_in_the_conversation() -> None:
    def messages(*ids: str) -> list[dict[str, Any]]:
        calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ids]
        return [USER, {"role": "assistant", "content": None, "tool_calls": calls}]

    assert first_call_index(request()) == 0
    assert first_call_index(request(messages=messages("call_0", "call_1"))) == 2
    assert first_call_index(request(messages=messages("call_7"))) == 8
    assert first_call_index(request(messages=messages("toolu_a", "toolu_b"))) == 2
