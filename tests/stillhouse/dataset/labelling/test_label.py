import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson
import psutil
import pytest

from stillhouse.config import DatasetConfig, LabelsConfig, StudentConfig, ToolsConfig
from stillhouse.dataset.label_input import LabelInput, Labeller
from stillhouse.dataset.labelling.format import format_labels
from stillhouse.dataset.labelling.label import (
    Labelling,
    label_file,
    label_processes,
    labelled_rows,
    text_labels,
    verification_labels,
)
from stillhouse.dataset.labelling.privacy import privacy_labels
from stillhouse.dataset.schema import CANDIDATES_FILE, SIGNATURES_FILE
from stillhouse.errors import ConfigError, StillhouseError
from stillhouse.store.records import write_jsonl
from stillhouse.types import PromptMetadata, Trajectory

LabelInto = Callable[..., dict[str, bytes]]

Make = Callable[..., Trajectory]
LABELS = """
from stillhouse.dataset import LabelArgs, label

@label
def worth(args: LabelArgs, messages: list) -> float:
    return {}
"""

TEXTS = (
    *("The answer is 5.", "Five apples. Five pears. Five plums.", "Fünf Äpfel und fünf Birnen sind im Korb."),
    *("I'm sorry, but I can't help with that.", "Je suis désolé, je ne peux pas vous aider.", "<think>5"),
    *("Write to anna.smith@gmail.com.", "Call +1 415 867 5309.", "```\nx = 5", "again " * 40, ""),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "labels.py"
    path.write_text(LABELS.format("0.5"))
    return path


def labelling(labels: LabelsConfig, **changes: object) -> Labelling:
    return Labelling.of(DatasetConfig(labels=labels, **changes), tools=ToolsConfig(), student=StudentConfig())


def test_lengths_count_what_each_side_wrote(make_input: Callable[..., LabelInput]) -> None:
    labels = text_labels([make_input("Five."), make_input(None)])
    assert labels["has_answer"] == [True, False]
    assert labels["answer_chars"] == [5, None]
    question, call = "Anna has 2 apples. Anna buys 3 more. Case 0.", '{"expression": "2 + 3"}'
    assert labels["prompt_chars"] == [len(question)] * 2
    assert labels["sampled_chars"] == [len(call) + len("\nFive."), len(call)]


def test_a_refusal_beside_the_content_is_one(label_of: Callable[..., object]) -> None:
    question = {"role": "user", "content": "2 + 3?"}
    declined = {"role": "assistant", "content": None, "refusal": " I'd rather\nnot. "}
    messages = [question, {"role": "assistant", "content": "Which sum?"}, question, declined]
    assert label_of(text_labels, "refusal", None, messages=messages) == "I'd rather not."
    assert label_of(text_labels, "refusal", None, messages=[*messages, question]) is None
    # A prompt may end with an assistant's message; without a turn nobody was asked.
    assert label_of(text_labels, "refusal", None, messages=messages, turns=[]) is None
    assert label_of(text_labels, "refusal", None) is None


def test_a_changed_file_is_read_again_by_a_process_that_knows_the_old_one(file: Path, make_trajectory: Make) -> None:
    config = LabelsConfig(render=False, file=str(file))
    inputs = [LabelInput.of(make_trajectory(), None)]

    def worth() -> float:
        (row,) = labelled_rows(inputs, labelling(config))
        value: float = orjson.loads(row["scores"])["worth"]
        return value

    assert worth() == 0.5
    file.write_text(LABELS.format("0.125"))
    assert worth() == 0.125


def test_a_row_says_which_text_was_compared(make_trajectory: Make, jail: None) -> None:
    answer = "```python\ndef twice(n):\n    return n\n```\n```\n4\n```"
    trajectory = make_trajectory(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}])
    metadata = PromptMetadata("p", None, None, "python", {"test_cases": ["assert twice(2) == 4"]})
    (row,) = labelled_rows([LabelInput.of(trajectory, metadata)], labelling(LabelsConfig(render=False)))
    assert (row["verified"], row["compared"]) == (False, "def twice(n):")
    assert row["verification"] == "tests.py, line 1: AssertionError: assert twice(2) == 4"


def test_a_labelling_is_equal_wherever_the_rest_of_the_config_makes_no_difference(file: Path) -> None:
    config = LabelsConfig(file=str(file))
    same = labelling(config, validation_fraction=0.5, duplicates={"threshold": 0.5})
    assert same == labelling(config)
    assert labelling(config, filters={"duplicates": "near"}) != same
    student, tools = StudentConfig(model="nobody/knows"), ToolsConfig(rewards_file="r.py")
    other = Labelling.of(DatasetConfig(labels=config), tools=tools, student=student)
    assert other.tools == ToolsConfig()
    assert other.contents["tokenizer"] == "nobody/knows"
    thinking = student.model_copy(update={"chat_template_kwargs": {"enable_thinking": True}})
    switched = Labelling.of(DatasetConfig(labels=config), tools=tools, student=thinking)
    assert switched != other
    assert "chat_template_kwargs" not in other.model_dump()
    unrendered = DatasetConfig(labels=LabelsConfig(render=False))
    assert Labelling.of(unrendered, tools=tools, student=thinking) == Labelling.of(
        unrendered, tools=tools, student=student
    )


def test_lengths_of_overlaps_are_part_of_what_is_measured_where_sets_are_named(tmp_path: Path) -> None:
    def key(filters: dict[str, object], **sets: str) -> dict[str, object]:
        return labelling(LabelsConfig(), filters=filters, contamination=sets).identity()

    exam = {"exam": str(tmp_path / "exam.txt")}
    Path(exam["exam"]).touch()
    assert key({"max_mixed_scripts": 0.1}) == {**key({}), "measured": ["mixed_scripts"]}
    assert key({"contamination_ngrams": 10}) == key({})
    assert key({"contamination_ngrams": 10}, **exam)["overlap_lengths"] == [8, 10, 13]


def test_an_evaluation_set_is_known_by_what_it_holds(tmp_path: Path) -> None:
    exam = tmp_path / "exam.txt"
    exam.write_text("What is the sum of two and three apples in the basket?\n")
    sets = {"exam": str(exam)}
    first = labelling(LabelsConfig(), contamination=sets)
    exam.write_text("Something else altogether.\n")
    assert labelling(LabelsConfig(), contamination=sets) != first


def test_a_missing_file_is_named_with_its_setting(tmp_path: Path, make_trajectory: Make) -> None:
    missing = labelling(LabelsConfig(render=False, file=str(tmp_path / "absent.py")))
    with pytest.raises(ConfigError, match=r"absent\.py.*dataset\.labels\.file"):
        labelled_rows([LabelInput.of(make_trajectory(), None)], missing)


DEADLY = """
import os
from stillhouse.dataset import LabelArgs, label

@label
def deadly(args: LabelArgs, messages: list) -> float:
    os.kill(os.getpid(), 9)
"""
PARENT = """
import os
from stillhouse.dataset.labelling.label import label_processes

if __name__ == "__main__":
    with label_processes(2) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        input()
"""


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def label_into(tmp_path: Path, make_trajectory: Callable[..., Trajectory]) -> Callable[..., dict[str, bytes]]:
    """Labels three trajectories under the labels of a user's file; what was written, by name."""
    trajectories, metadata = tmp_path / "trajectories.jsonl", tmp_path / "metadata.jsonl"
    write_jsonl(trajectories, [make_trajectory(number) for number in range(3)])
    metadata.write_text("")

    def run(folder: str, labels: str | None = None) -> dict[str, bytes]:
        file = tmp_path / "labels.py"
        file.write_text(labels or "")
        config = LabelsConfig(render=False, file=None if labels is None else str(file))
        labelling = Labelling.of(DatasetConfig(labels=config), tools=ToolsConfig(), student=StudentConfig())
        target = tmp_path / folder
        target.mkdir()
        assert label_file(trajectories, metadata, labelling, target)[0] == 3
        return {name: (target / name).read_bytes() for name in (CANDIDATES_FILE, SIGNATURES_FILE)}

    return run


def test_a_process_writes_what_this_one_would(label_into: LabelInto) -> None:
    here = label_into("here")
    with label_processes(1):
        assert label_into("there") == here


def test_an_error_in_a_process_is_the_error_here(label_into: LabelInto) -> None:
    with label_processes(1), pytest.raises(ConfigError, match=r"labels\.py, line 2: .*KeyError: 'x'"):
        label_into("there", "\n{}['x']\n")


def test_a_killed_process_is_an_error_with_what_to_do(label_into: LabelInto) -> None:
    with label_processes(1), pytest.raises(StillhouseError, match=r"killed .*runtime\.num_threads"):
        label_into("there", DEADLY)


def test_processes_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.ppid() == parent.pid != os.getpid()
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    deadline = time.monotonic() + 60
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    "labeller",
    [partial(text_labels, measured=["language"]), verification_labels, privacy_labels, format_labels],
)
def test_the_order_of_a_batch_changes_no_label(labeller: Labeller, make_input: Callable[..., LabelInput]) -> None:
    inputs = [make_input(text) for text in TEXTS]
    order = random.Random(0).sample(range(len(inputs)), len(inputs))
    shuffled = labeller([inputs[place] for place in order])
    for column, values in labeller(inputs).items():
        assert shuffled[column] == [values[place] for place in order]
