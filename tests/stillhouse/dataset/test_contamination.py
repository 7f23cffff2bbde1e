import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.dataset.contamination import ContaminationLabels, sets_fingerprint
from stillhouse.dataset.label_input import LabelInput
from stillhouse.errors import ConfigError, InputError
from stillhouse.types import StopReason, Trajectory, Turn

LENGTHS = (8, 13)
PROBLEM = (
    "A farmer has seventeen sheep and all but nine of them run away; how many sheep does the farmer have left, and how "
    "many would he need to buy at $3 each to have twenty again?"
)
SOLUTION = "Nine sheep remain, since all but nine ran away, so that he buys eleven of them for thirty-three dollars."
OTHER = "Compute the sum of the first one hundred positive integers by pairing the terms from both ends of the list."


def item(request: str, written: str = "I cannot tell.", returned: str | None = None) -> LabelInput:
    messages: list[Any] = [{"role": "user", "content": request}]
    if returned is not None:
        call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "c", "content": returned})
    messages.append({"role": "assistant", "content": written})
    turns = [Turn("stop", {}, 0.5, "teacher-1") for message in messages if message["role"] == "assistant"]
    return LabelInput.of(Trajectory("r", "p", 0, messages, [], turns, StopReason.ANSWERED, "teacher"), None)


def write_jsonl(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def hits(labels: ContaminationLabels, *inputs: LabelInput) -> list[list[dict[str, Any]]]:
    return labels(inputs)["contamination"]


@pytest.fixture
def riddles(tmp_path: Path) -> str:
    return write_jsonl(tmp_path / "riddles.jsonl", {"question": OTHER}, {"question": PROBLEM, "solution": SOLUTION})


def test_a_contaminated_prompt_is_named_with_set_row_and_words(riddles: str) -> None:
    labels = ContaminationLabels({"riddles": riddles}, LENGTHS)
    shouted = PROBLEM.upper().replace(";", " --").replace(",", "")
    assert hits(labels, item(f"Solve this: {shouted}"), item("How many sheep does a farmer have?")) == [
        [
            {
                "set": "riddles",
                "row": 1,
                "part": "prompt",
                "ngram": 13,
                "text": "a farmer has seventeen sheep and all but nine of them run away",
            }
        ],
        [],
    ]


def test_what_the_model_wrote_and_what_tools_returned_are_looked_through(riddles: str) -> None:
    labels = ContaminationLabels({"riddles": riddles}, LENGTHS)
    found = hits(labels, item("Solve it.", "Nine sheep remain since all but nine ran off.", f"Found: {OTHER}"))[0]
    assert [(hit["part"], hit["row"], hit["ngram"]) for hit in found] == [("tools", 0, 13), ("answer", 1, 8)]
    assert found[1]["text"] == "nine sheep remain since all but nine ran"


@given(start=st.integers(0, 20), length=st.integers(1, 20), around=st.integers(0, 5))
def test_only_long_runs_count(tmp_path_factory: pytest.TempPathFactory, start: int, length: int, around: int) -> None:
    spelled = [f"w{number}" for number in range(40)]
    path = tmp_path_factory.mktemp("sets") / "set.txt"
    path.write_text(" ".join(spelled))
    labels = ContaminationLabels({"s": str(path)}, (5, 9))
    other = [f"o{number}" for number in range(around)]
    found = hits(labels, item(" ".join([*other, *spelled[start : start + length], *other])))[0]
    expected = 9 if length >= 9 else 5 if length >= 5 else None
    assert [hit["ngram"] for hit in found] == ([] if expected is None else [expected])
    if expected:
        assert found[0]["text"] == " ".join(spelled[start : start + expected])


def test_the_row_that_shares_most_comes_first_and_no_more_than_five_are_named(tmp_path: Path) -> None:
    chance = random.Random(0)
    shared = " ".join(f"shared{number}" for number in range(13))
    rows = [f"{shared} {' '.join(f'own{chance.random()}' for _ in range(20))}" for _ in range(8)]
    path = write_jsonl(tmp_path / "set.jsonl", *({"prompt": row} for row in rows))
    found = hits(ContaminationLabels({"s": path}, LENGTHS), item(rows[6]))[0]
    assert [hit["row"] for hit in found] == [6, 0, 1, 2, 3]


def test_a_template_of_many_rows_is_no_sign_of_any(tmp_path: Path) -> None:
    template = "Answer the following question with the letter of the one correct choice and say nothing else."
    many = write_jsonl(tmp_path / "many.jsonl", *({"q": f"{template} {OTHER} Case {n}."} for n in range(11)))
    few = write_jsonl(tmp_path / "few.jsonl", *({"q": f"{template} Case {n}."} for n in range(10)))
    row = item(f"{template} Which of these are mammals?")
    assert hits(ContaminationLabels({"many": many}, LENGTHS), row) == [[]]
    assert hits(ContaminationLabels({"few": few, "many": many}, LENGTHS), row)[0][0]["set"] == "few"


def test_an_evaluation_row_that_is_repeated_often_is_still_found(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "set.jsonl", *({"problem": PROBLEM} for _ in range(64)))
    found = hits(ContaminationLabels({"s": path}, LENGTHS), item(PROBLEM))[0]
    assert [hit["row"] for hit in found] == [0]


def conversation(text: str) -> dict[str, str]:
    return {"messages": json.dumps([{"role": "user", "content": text}])}


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("set.txt", lambda path: path.write_text(f"{OTHER}\n\n{PROBLEM}\n")),
        ("set.csv", lambda path: path.write_text(f'id,question\n1,"{OTHER}"\n2,"{PROBLEM}"\n')),
        (
            "set.parquet",
            lambda path: pq.write_table(
                pa.table({"question": [{"id": 1, "turns": [OTHER]}, {"id": 2, "turns": ["Think.", PROBLEM]}]}), path
            ),
        ),
        ("set.jsonl", lambda path: write_jsonl(path, conversation(OTHER), conversation(f"\n{PROBLEM}"))),
    ],
)
def test_sets_of_every_format_are_read(tmp_path: Path, name: str, write: Callable[[Path], object]) -> None:
    write(tmp_path / name)
    labels = ContaminationLabels({"s": str(tmp_path / name)}, LENGTHS)
    found = hits(labels, item(PROBLEM))[0]
    assert [(hit["row"], hit["text"][:20]) for hit in found] == [(1, "a farmer has sevente")]


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("gone.jsonl", None, InputError, r"aime: .*gone\.jsonl"),
        ("set.docx", "a", ConfigError, r"aime = '.*set\.docx': .*\.txt"),
        ("set.jsonl", '{"problem": "What is 2 + 3?"}\n', InputError, "aime: no row .* 8 words"),
        ("set.jsonl", '{"problem": "a"}\n{"prob', InputError, "aime: .*, line 2: "),
        ("set.csv", "id,question\n1\n", InputError, "aime: .*, line 2: "),
        ("set.csv", b"id,question\n1,\xff\n", InputError, r"aime: .*set\.csv, line 2: "),
        ("set.parquet", "PAR", InputError, r"aime: .*set\.parquet"),
    ],
)
def test_unusable_sets_are_named(
    tmp_path: Path, name: str, content: str | bytes | None, error: type[Exception], message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(error, match=r"dataset\.contamination\." + message):
        ContaminationLabels({"aime": str(tmp_path / name)}, LENGTHS)


def test_the_fingerprint_follows_the_bytes_of_the_files_and_their_names(tmp_path: Path, riddles: str) -> None:
    sets = {"riddles": riddles}
    before = sets_fingerprint(sets)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(Path(riddles).read_bytes())
    assert sets_fingerprint({"riddles": str(copy)}) == before
    assert sets_fingerprint({"others": riddles}) != before
    Path(riddles).write_text('{"question": "changed"}\n')
    assert sets_fingerprint(sets) != before
