from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.config.dataset import Comparison
from stillhouse.dataset.duplicates.signatures import ComparedTexts, read_texts, texts_of
from stillhouse.types import StopReason, Trajectory, Turn

CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"b": 2,  "a": 1}'}}
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello to you."},
    {"role": "user", "content": [{"type": "text", "text": "Add 1 and 2."}]},
    {"role": "assistant", "reasoning": "Use the tool.", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
]
SAMPLED = 'use the tool. add {"a":1,"b":2} it is 3.'


def test_the_prompt_ends_where_sampling_began() -> None:
    asked = "hello. add 1 and 2."
    assert texts_of(MESSAGES, 2) == ComparedTexts(
        prompt=f"be brief. {asked}",
        row=f"be brief. {asked} {SAMPLED}",
        prompt_content=asked,
        row_content=f"{asked} {SAMPLED}",
    )
    assert texts_of(MESSAGES, 3).prompt == "be brief. hello."
    assert texts_of(MESSAGES[:4], 0) == ComparedTexts(f"be brief. {asked}", "", asked, "")


def test_a_prompt_of_a_system_message_alone_is_compared_by_that() -> None:
    assert texts_of([MESSAGES[0], MESSAGES[-1]], 1).prompt_content == "be brief."


def test_a_stored_row_has_the_texts_of_its_trajectory(write_shard: Callable[..., Any], tmp_path: Path) -> None:
    malformed = [*MESSAGES[:4], {"role": "assistant", "content": None, "tool_calls": [_call('{"a": 1e999')]}]
    rows = [
        Trajectory("a", "p", 0, MESSAGES, [], [Turn("stop", {}, 0.5, "t")] * 2, StopReason.ANSWERED, "t"),
        Trajectory("b", "p", 1, malformed, [], [Turn("stop", {}, 0.5, "t")], StopReason.MAX_TURNS, "t"),
    ]
    shard = write_shard(rows, Comparison(), tmp_path / "shard")
    assert list(read_texts(shard.candidates)) == [texts_of(MESSAGES, 2), texts_of(malformed, 1)]


@pytest.mark.parametrize(
    "stored",
    [
        MESSAGES[1:3],
        [orjson.dumps(message).decode() for message in MESSAGES[1:3]],
        orjson.dumps(MESSAGES[1:3]).decode(),
    ],
    ids=["objects", "texts", "text"],
)
def test_messages_are_read_as_objects_or_as_json(stored: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"messages": [stored]}), tmp_path / "rows.parquet")
    texts = ComparedTexts("hello.", "hello. hello to you.", "hello.", "hello. hello to you.")
    assert list(read_texts(tmp_path / "rows.parquet")) == [texts]


def test_only_the_rows_wanted_are_read(tmp_path: Path) -> None:
    questions = [[{"role": "user", "content": f"question {number}"}] for number in range(5000)]
    pq.write_table(pa.table({"messages": questions}), tmp_path / "rows.parquet", row_group_size=2000)
    wanted = [3, 1999, 4000, 4999]
    found = [texts.prompt for texts in read_texts(tmp_path / "rows.parquet", wanted)]
    assert found == ["question 3", "question 1999", "question 4000", "question 4999"]


def _call(arguments: str) -> dict[str, Any]:
    return {"id": "d", "type": "function", "function": {"name": "add", "arguments": arguments}}


def test_calls_that_differ_in_the_last_of_many_digits_are_not_the_same() -> None:
    def asked(number: int) -> ComparedTexts:
        function = {"name": "f", "arguments": f'{{"id": {number}}}'}
        call = {"id": "1", "type": "function", "function": function}
        return texts_of(
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [call]}], 1
        )

    assert asked(98765432109876543210) != asked(98765432109876543211)
