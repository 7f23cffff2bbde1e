import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.chat.samples import render_samples
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.dataset.read import original_messages, parsed
from stillhouse.dataset.rows import candidate_row
from stillhouse.dataset.schema import CANDIDATE_COLUMNS, LABEL_COLUMNS
from stillhouse.types import JsonObject, PromptMetadata, StopReason, Trajectory, Turn

Make = Callable[..., Trajectory]

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
SPELT_OBJECTS = st.builds(
    json.dumps,
    st.dictionaries(TEXTS, JSON_VALUES, max_size=3),
    indent=st.sampled_from([None, 2]),
    ensure_ascii=st.booleans(),
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("embedded:student")


def with_arguments(*arguments: Any, name: str = "f") -> Trajectory:
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": text}}
        for number, text in enumerate(arguments)
    ]
    messages: Any = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    return Trajectory("k", "p", 0, messages, [], [Turn("stop", {}, 0.0, "m")], StopReason.ANSWERED, "m")


def stored_arguments(row: JsonObject) -> list[Any]:
    return [call["function"]["arguments"] for call in json.loads(row["messages"][1])["tool_calls"]]


def read_back(row: JsonObject) -> JsonObject:
    return {"messages": [json.loads(text) for text in row["messages"]], "arguments": row["arguments"]}


def test_a_row_has_every_column_in_order_and_null_for_what_was_not_measured(make_trajectory: Make) -> None:
    row = candidate_row(make_trajectory(), None, {}, None)
    assert list(row) == [column.name for column in CANDIDATE_COLUMNS]
    assert {row[column.name] for column in LABEL_COLUMNS} == {None}
    assert (row["metadata"], row["error"], row["sampling"]) == ("{}", None, None)


def test_a_row_holds_what_trajectory_prompt_and_labels_say(make_trajectory: Make) -> None:
    turns = [Turn("stop", {"cached_tokens": 3}, 0.5, "m", provider="x", request_id=name) for name in ("r1", None)]
    trajectory = make_trajectory(turns=turns, error={"kind": "timeout", "message": "late"})
    labels = {"verified": False, "scores": {"reward": 0.5}, "contamination": [{"set": "s", "ngram": 8}]}
    row = candidate_row(trajectory, PromptMetadata("p", "5", "sums", "numeric", {"k": [1, None]}), labels, "abc")
    assert (row["verified"], row["expected_answer"], row["tag"], row["sampling"]) == (False, "5", "sums", "abc")
    assert (row["request_ids"], row["cached_tokens"], row["cost_usd"]) == (["r1"], 6, None)
    assert json.loads(row["scores"]) == {"reward": 0.5}
    assert [json.loads(text) for text in row["contamination"]] == [{"set": "s", "ngram": 8}]
    assert json.loads(row["error"]) == {"kind": "timeout", "message": "late"}
    assert json.loads(row["metadata"]) == {"k": [1, None]}


def test_a_label_that_is_no_column_is_refused(make_trajectory: Make) -> None:
    with pytest.raises(KeyError, match="lenght"):
        candidate_row(make_trajectory(), None, {"lenght": 3}, None)


@pytest.mark.parametrize(
    "text", ["", "oops", '{"a": ', '["a"]', '"{}"', '{"x": NaN}', '{"x": 1e999}', '{"x": 18446744073709551616}',
             '{"x": "\\ud800"}', "[" * 100_000],
)  # fmt: skip
def test_what_json_would_not_give_back_as_the_same_object_stays_text(text: str) -> None:
    row = candidate_row(with_arguments(text), None, {}, None)
    assert stored_arguments(row) == [text]
    assert row["arguments"] == [text]


def test_the_block_of_a_malformed_call_stays_text() -> None:
    row = candidate_row(with_arguments("{}", name=MALFORMED_CALL), None, {}, None)
    assert stored_arguments(row) == ["{}"]


@given(st.lists(SPELT_OBJECTS | TEXTS, min_size=1, max_size=3))
def test_nothing_of_what_the_model_wrote_is_lost(arguments: list[str]) -> None:
    trajectory = with_arguments(*arguments)
    row = candidate_row(trajectory, None, {}, None)
    assert original_messages(read_back(row)) == trajectory.messages
    for stored, text in zip(stored_arguments(row), arguments, strict=True):
        if stored != text:
            assert json.dumps(stored, allow_nan=False) == json.dumps(json.loads(text), allow_nan=False)


@pytest.mark.parametrize(
    "call", [{"id": "c", "function": {"name": "f"}}, {"id": "c", "function": None}, {"id": "c"},
             {"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}],
)  # fmt: skip
def test_a_call_that_an_endpoint_wrote_otherwise_is_kept_as_it_is(call: JsonObject) -> None:
    trajectory = with_arguments('{"b": 2}')
    trajectory.messages[1]["tool_calls"].append(call)  # type: ignore[arg-type]
    row = candidate_row(trajectory, None, {}, None)
    assert row["arguments"] == ['{"b": 2}', None]
    assert (row["tool_names"], row["num_tool_calls"]) == (["f", call.get("function") and "f"], 2)
    assert original_messages(read_back(row)) == trajectory.messages


def test_tools_are_named_in_the_order_they_were_called_without_calls_of_the_prompt(make_trajectory: Make) -> None:
    asked, calling, result, answer = make_trajectory().messages
    shown, sampled = (
        [{**calling["tool_calls"][0], "function": {"name": name}} for name in names] for names in ("s", "gfg")
    )
    prompt = [asked, {**calling, "tool_calls": shown}, answer, asked]
    messages = [*prompt, {**calling, "tool_calls": sampled}, result, answer]
    row = candidate_row(make_trajectory(messages=messages), None, {}, None)
    assert (row["tool_names"], row["num_tool_calls"]) == (["g", "f", "g"], 3)


@settings(max_examples=50)
@given(st.lists(SPELT_OBJECTS | TEXTS | st.sampled_from(['{"x": NaN}', '{"x": 1180591620717411303424}']), min_size=1))
def test_stored_messages_render_as_the_trajectorys_do(tokenizer: PreTrainedTokenizerBase, arguments: list[str]) -> None:
    trajectory = with_arguments(*arguments)
    stored = read_back(candidate_row(trajectory, None, {}, None))["messages"]
    assert render_samples(tokenizer, stored, []) == render_samples(tokenizer, trajectory.messages, [])


def test_whole_numbers_above_64_bits_stay_exact_in_metadata_and_calls(make_trajectory: Make) -> None:
    number = 98765432109876543210
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"id": number}}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    metadata = PromptMetadata("p", str(number), None, "exact", {"ids": [number]})
    row = parsed(candidate_row(make_trajectory(messages=messages), metadata, {}, None))
    assert row["metadata"] == {"ids": [number]}
    assert row["messages"][1]["tool_calls"] == [call]
