from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stillhouse.dataset.rows import candidate_row
from stillhouse.dataset.schema import COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.errors import InputError
from stillhouse.report.view.rows import ViewRow, read_view_rows
from stillhouse.report.view.sources import TrajectoryFile, ViewSource
from stillhouse.store.records import write_jsonl
from stillhouse.types import PromptMetadata, StopReason, Trajectory

Make = Callable[..., Trajectory]


def _read(path: Path, *, labels: tuple[Path, ...] = (), metadata: tuple[Path, ...] = ()) -> list[ViewRow]:
    return list(read_view_rows(ViewSource("title", "place", (TrajectoryFile("rollouts", path),), labels, metadata)))


@pytest.fixture
def dataset(tmp_path: Path, make_trajectory: Make) -> Path:
    path = tmp_path / "rejected.parquet"
    decided = {
        "verified": False,
        "compared": "41",
        "verification": "off by one",
        "kept": False,
        "drop_reasons": ["wrong"],
    }
    row = {column.name: None for column in COLUMNS} | candidate_row(make_trajectory(1), None, {}, None) | decided
    with TableWriter(path, COLUMNS) as writer:
        writer.write(row)
    return path


def test_a_rollouts_record_keeps_the_facts_of_each_turn_and_leaves_token_ids_out(
    tmp_path: Path, make_trajectory: Make
) -> None:
    path = tmp_path / "trajectories.jsonl"
    write_jsonl(path, [make_trajectory(1)])
    (row,) = _read(path)
    assert (row.stage, row.outcome, row.kept, row.score) == ("rollouts", "unverified", None, None)
    assert row.figures["completion_tokens"] == 12
    assert row.figures["usd"] == pytest.approx(0.003)
    assert [turn["provider"] for turn in row.body["turns"]] == ["Groq", "Groq"]
    assert "completion_ids" not in row.body["turns"][0]


def test_a_latency_that_is_unknown_is_shown_as_unknown(tmp_path: Path, make_trajectory: Make) -> None:
    plain = make_trajectory(1)
    turns = [plain.turns[0], replace(plain.turns[1], latency_s=None)]
    write_jsonl(tmp_path / "t.jsonl", [make_trajectory(1, turns=turns)])
    (row,) = _read(tmp_path / "t.jsonl")
    assert row.figures["latency_s"] is None
    assert [turn["latency_s"] for turn in row.body["turns"]] == [0.5, None]


def test_a_dataset_says_whether_its_rollouts_are_right_and_kept(
    tmp_path: Path, make_trajectory: Make, dataset: Path
) -> None:
    path = tmp_path / "trajectories.jsonl"
    write_jsonl(path, [make_trajectory(1), make_trajectory(2)])
    labelled, unlabelled = _read(path, labels=(dataset,))
    assert (labelled.outcome, labelled.kept, labelled.score) == ("wrong", False, 0.0)
    assert labelled.body["drop_reasons"] == ["wrong"]
    assert len(labelled.body["turns"]) == 2
    assert labelled.body["comparison"] == "compared \u201c41\u201d: wrong; off by one"
    assert (unlabelled.outcome, unlabelled.kept) == ("unverified", None)


def test_without_a_dataset_the_expected_answers_of_the_prompts_decide(tmp_path: Path, make_trajectory: Make) -> None:
    write_jsonl(tmp_path / "metadata.jsonl", [PromptMetadata("p1", "42", "shop", "numeric", {"level": 3})])
    write_jsonl(tmp_path / "t.jsonl", [make_trajectory(1), make_trajectory(1, answer="It is 41.")])
    right, wrong = _read(tmp_path / "t.jsonl", metadata=(tmp_path / "metadata.jsonl",))
    assert (right.outcome, right.score, wrong.outcome, wrong.score) == ("right", 1.0, "wrong", 0.0)
    assert (right.body["expected_answer"], right.body["tag"], right.body["metadata"]) == ("42", "shop", {"level": 3})


def test_a_rollout_that_ended_in_an_error_failed_and_is_not_wrong(tmp_path: Path, make_trajectory: Make) -> None:
    write_jsonl(tmp_path / "metadata.jsonl", [PromptMetadata("p1", "42", None, "numeric", {})])
    error = {"kind": "stall", "message": "silence"}
    write_jsonl(tmp_path / "t.jsonl", [make_trajectory(1, stop_reason=StopReason.ERROR, error=error)])
    (row,) = _read(tmp_path / "t.jsonl", metadata=(tmp_path / "metadata.jsonl",))
    assert (row.outcome, row.score, row.body["error"]) == ("failed", None, error)


def test_a_datasets_row_has_totals_and_no_facts_of_turns(dataset: Path, make_trajectory: Make) -> None:
    (row,) = _read(dataset)
    assert (row.outcome, row.kept, row.figures["turns"], row.figures["completion_tokens"]) == ("wrong", False, 2, 12)
    assert row.body["turns"] is None
    assert row.body["messages"] == make_trajectory(1).messages


def test_a_chat_line_keeps_its_facts_among_the_metadata(tmp_path: Path) -> None:
    line = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "tools": [],
        "metadata": {"teacher": "m", "turns": 1, "verified": True, "expected_answer": "a", "score": 0.5},
    }
    write_jsonl(tmp_path / "out.jsonl", [line])
    (row,) = _read(tmp_path / "out.jsonl")
    assert (row.outcome, row.score, row.body["model"], row.figures["turns"]) == ("right", 0.5, "m", 1)
    assert row.body["id"] == "row-1"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "x"}, r"row 2: no trajectory: KeyError: 'messages'.*saw the keys prompt"),
        ({"messages": "x"}, "messages is no list of objects"),
        ({"messages": [1]}, "messages is no list of objects"),
        ({"messages": [], "verified": "yes"}, "KeyError: 'yes'"),
        ({"rollout_key": "x"}, "KeyError: 'turns'"),
    ],
)
def test_a_row_that_is_no_trajectory_is_named_by_file_and_number(row: Any, problem: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "out.jsonl", [{"messages": []}, row])
    with pytest.raises(InputError, match=problem) as raised:
        _read(tmp_path / "out.jsonl")
    assert "out.jsonl" in str(raised.value)


def test_a_parquet_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match=r"x\.parquet"):
        _read(tmp_path / "x.parquet")
