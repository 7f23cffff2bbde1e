"""The task of the recipe with a pretrained model, and its configs."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from stillhouse.config import load_config

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "smollm"
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """Return what the script writes, by the file's stem."""
    folder = tmp_path_factory.mktemp("orders")
    subprocess.run([sys.executable, FOLDER / "orders.py", folder], check=True)
    return {file.stem: [json.loads(line) for line in file.read_text().splitlines()] for file in folder.glob("*.jsonl")}


def test_what_is_expected_is_in_the_words_of_the_order(rows: dict[str, list[dict]]) -> None:
    items = runpy.run_path(str(FOLDER / "orders.py"))["_ITEMS"]
    for row in rows["prompts"]:
        said, expected = row["prompt"].lower(), json.loads(row["expected_answer"])
        assert f"table {NUMBERS[expected['table'] - 1]}" in said
        assert expected["items"]
        for item, count in expected["items"].items():
            said_count = count - 1 if f"another {item}" in said else count
            assert f"{NUMBERS[said_count - 1]} {item if said_count == 1 else items[item]}" in said


def test_no_prompt_of_the_student_is_one_that_the_teacher_learnt(rows: dict[str, list[dict]]) -> None:
    learnt = {row["messages"][0]["content"] for row in rows["answered"]}
    asked = {row["prompt"] for row in rows["prompts"]}
    assert (len(learnt), len(asked), learnt & asked) == (640, 400, set())


@pytest.mark.parametrize("name", ["teacher", "student"])
def test_configs_are_valid(name: str) -> None:
    assert load_config(FOLDER / f"{name}.yaml").student.model == "runs/smollm/model"
