import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.dataset import LabelArgs, label
from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.labelling.functions import UserLabels
from stillhouse.errors import ConfigError
from stillhouse.types import Message, PromptMetadata, StopReason

MakeInput = Callable[..., LabelInput]
Write = Callable[[str], Path]

IMPORTS = "from stillhouse.dataset import LabelArgs, label\nfrom stillhouse.types import Message, StopReason\n"
LABELS = """
@label
def words(args: LabelArgs, messages: list[Message]) -> int:
    return len((args.answer or "").split())

@label
def polite(args: LabelArgs, messages: list[Message]) -> "bool | str":
    return True if "please" in messages[0]["content"].lower() else " impolite\\n"

@label
def facts(args: LabelArgs, messages: list[Message]) -> str | None:
    seen = (args.metadata, args.expected_answer, args.tag, args.stop_reason, args.prompt_id, args.sample_index)
    expected = ({"k": [1]}, "5", "sums", StopReason.ANSWERED, "prompt-0", 0)
    return None if seen == expected and args.tools[0]["function"]["name"] == "calculator" else repr(seen)

@label
def spoils(args: LabelArgs, messages: list[Message]) -> float:
    args.metadata["k"].append(2)
    args.tools.clear()
    messages.clear()
    return 0.5

@label
def undefined(args: LabelArgs, messages: list[Message]) -> float:
    return float("nan")
"""
FAILS = """
@label
def fails(args: LabelArgs, messages: list[Message]) -> float:
    return 1 / len(args.metadata)
"""
METADATA = PromptMetadata("prompt-0", "5", "sums", "numeric", {"k": [1]})


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "labels.py"
        path.write_text(IMPORTS + text)
        return path

    return write


def test_numbers_are_scores_and_texts_objections(write: Write, make_input: MakeInput) -> None:
    item = make_input("The answer is 5.", metadata=METADATA)
    labels = UserLabels(write(LABELS + FAILS))([item])
    assert labels["scores"] == [{"words": 4.0, "spoils": 0.5, "undefined": None, "fails": 1.0}]
    assert labels["objections"] == [["impolite"]]
    assert item.metadata == METADATA
    assert len(item.trajectory.messages) == 4
    assert item.trajectory.tools


def test_failures_are_no_score_but_logged(
    write: Write, make_input: MakeInput, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(FAILS)
    labels = UserLabels(path)
    with caplog.at_level(logging.WARNING):
        scores = labels([make_input(number=number) for number in range(12)])["scores"]
    assert scores == [{"fails": None}] * 12
    first, tenth = caplog.messages
    assert f"{path}: fails gave no score for 1 of" in first
    assert f"rollout {0:064x}" in first
    assert 'labels.py", line 6, in fails' in first
    assert "functions.py" not in first
    assert first.endswith("ZeroDivisionError: division by zero")
    assert "no score for 10 of" in tenth


@pytest.mark.parametrize("value", ["[1]", "'  '", "float('inf')", "1j", "exit()"])
def test_what_is_neither_number_nor_text_is_no_score(write: Write, make_input: MakeInput, value: str) -> None:
    path = write(f"@label\ndef odd(args: LabelArgs, messages: list[Message]) -> float:\n    return {value}\n")
    labels = UserLabels(path)([make_input()])
    assert (labels["scores"], labels["objections"]) == ([{"odd": None}], [[]])


def test_a_label_is_still_a_function() -> None:
    @label
    def turns(args: LabelArgs, messages: list[Message]) -> int:
        return len(messages)

    args = LabelArgs({}, None, None, None, StopReason.ANSWERED, [], "", "", 0)
    assert turns(args, [{"role": "user", "content": "2 + 3"}]) == 1


def test_a_function_with_two_names_counts_once(write: Write, make_input: MakeInput) -> None:
    path = write("@label\ndef one(args: LabelArgs, messages: list[Message]) -> str:\n    return 'no'\nother = one\n")
    assert UserLabels(path)([make_input()])["objections"] == [["no"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_to_be_found\n", "line 3: .*ModuleNotFoundError"),
        ("x = 1\n", "@label"),
        ("@label\ndef f(messages) -> float: ...\n", r"@label f .*line 3\): .*\(args: LabelArgs"),
        ("@label\ndef f(args: LabelArgs, *, messages) -> float: ...\n", r"line 3\): .*parameters"),
        ("@label\ndef f(args: LabelArgs, messages): ...\n", r"line 3\): .*result"),
        ("@label\ndef f(args: LabelArgs, messages) -> list[str]: ...\n", r"line 3\): .*result"),
        ("@label\ndef f(args: 'Nowhere', messages) -> float: ...\n", r"line 3\): .*type hint"),
        ("@label\nasync def f(args: LabelArgs, messages) -> float: ...\n", r"line 3\): .*async"),
        ("@label\ndef reward(args: LabelArgs, messages) -> float: ...\n", r"line 3\): `reward`"),
    ],
)
def test_a_file_that_does_not_load_is_named_with_its_reason(write: Write, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        UserLabels(write(text))
