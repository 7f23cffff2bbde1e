import json
from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.rollouts.files import total_usage, trajectory_row, write_rows
from stillhouse.tools.calculator import calculator
from stillhouse.types import PromptMetadata, StopReason, TokenUsage, Trajectory, Turn


def trajectory(sample_index: int = 0, *usages: TokenUsage) -> Trajectory:
    return Trajectory(
        rollout_key="k" * 64,
        prompt_id="p",
        sample_index=sample_index,
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
        tools=[calculator.schema],
        turns=[Turn("stop", usage, 0.5, "m") for usage in usages or ({"prompt_tokens": 3, "completion_tokens": 2},)],
        stop_reason=StopReason.ANSWERED,
        model="teacher-1",
    )


METADATA = PromptMetadata("p", "4", "easy", "exact", {"teacher": "mine", "num_turns": 99})


def test_a_row_has_messages_full_schemas_and_facts() -> None:
    row = trajectory_row(trajectory(), METADATA)
    assert row["messages"] == trajectory().messages
    assert row["tools"] == [calculator.schema]
    assert row["metadata"]["stop_reason"] == "answered"
    assert row["metadata"]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2}


def test_a_prompts_own_metadata_hides_nothing_of_ours() -> None:
    about = trajectory_row(trajectory(), METADATA)["metadata"]
    assert (about["teacher"], about["num_turns"]) == ("teacher-1", 1)
    assert about["prompt"] == {"teacher": "mine", "num_turns": 99, "expected_answer": "4", "tag": "easy"}


def test_usage_is_a_sum_only_where_every_turn_reported_it() -> None:
    both = trajectory(0, {"prompt_tokens": 3, "completion_tokens": 2}, {"completion_tokens": 5})
    assert total_usage(both) == {"completion_tokens": 7}


def test_rows_replace_a_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "train.jsonl"
    assert write_rows(path, [trajectory(0), trajectory(1)], {"p": METADATA}) == 2
    assert write_rows(path, [trajectory(2)], {}) == 1
    lines = path.read_text().splitlines()
    assert [json.loads(line)["metadata"]["sample_index"] for line in lines] == [2]
    assert [child.name for child in path.parent.iterdir()] == ["train.jsonl"]


def test_a_failure_in_the_middle_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_rows(path, [trajectory(0)], {})

    def rows():  # type: ignore[no-untyped-def]
        yield trajectory(1)
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        write_rows(path, rows(), {})
    assert len(path.read_text().splitlines()) == 1
    assert [child.name for child in tmp_path.iterdir()] == ["train.jsonl"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/train\.jsonl: cannot be written"):
        write_rows(tmp_path / "file" / "train.jsonl", [trajectory()], {})
