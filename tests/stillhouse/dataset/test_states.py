from collections import Counter
from typing import Any

import pytest

from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.dataset.states import replayed_states
from stillhouse.errors import InputError

SCHEMA = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}


def said(number: int) -> dict[str, Any]:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "calculator", "arguments": {"n": number}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def row(num_turns: int, name: str = "r", **columns: Any) -> dict[str, Any]:
    """A row of a dataset: calls, and an answer at the end, behind a prompt that has an answer of its own."""
    given = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    messages: list[dict[str, Any]] = [*given, {"role": "user", "content": "How many?"}]
    for number in range(num_turns - 1):
        messages += [said(number), {"role": "tool", "tool_call_id": f"call_{number}", "content": str(number)}]
    messages.append({"role": "assistant", "content": "42"})
    known = {"expected_answer": "42", "tag": "t", "verifier": "numeric", "metadata": {"source": "s"}}
    return {"id": name, "messages": messages, "tools": [SCHEMA], "turns": num_turns, **known, **columns}


def test_turns_are_drawn_by_the_formula() -> None:
    states, _ = replayed_states([row(6)], 0.6, 10_000, seed=0)
    assert len(states) == 10_000
    assert len({state.id for state in states}) == 10_000, "repeated states are prompts of their own"
    # Messages before turn t: three of the prompt, and two for each turn before.
    shares = Counter((len(state.messages) - 3) // 2 for state in states)
    expected = (0.420, 0.252, 0.151, 0.091, 0.054, 0.033)
    assert [shares[turn] / 10_000 for turn in range(6)] == pytest.approx(expected, abs=0.015)


def test_a_state_is_what_the_model_read_at_its_turn() -> None:
    tokenizer = load_tokenizer("embedded:student")
    one = row(3)
    whole = render(tokenizer, one["messages"], [SCHEMA], add_generation_prompt=False)
    states, metadata = replayed_states([one], 1.0, 50, seed=1)
    starts = set()
    for state, known in zip(states, metadata, strict=True):
        read = render(tokenizer, state.messages, [SCHEMA], add_generation_prompt=True)
        assert whole[: len(read)] == read
        starts.add(len(read))
        assert state.tools == ["calculator"]
        assert (known.prompt_id, known.expected_answer, known.tag) == (state.id, "42", "t")
        assert known.metadata == {"source": "s"}
    assert len(starts) == 3


def test_every_row_is_drawn_equally_often_and_the_same_seed_draws_the_same() -> None:
    rows = [row(1, "a"), row(4, "b", tools=None)]
    drawn = [replayed_states(rows, 0.6, 9, seed)[0] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(state.tools or ()) for state in drawn[0]] == [1, 0] * 5


def test_a_dataset_whose_rows_all_validate_is_refused_by_the_settings_name() -> None:
    with pytest.raises(InputError, match=r"dataset\.validation_fraction"):
        replayed_states([], 0.6, 10, seed=0)
