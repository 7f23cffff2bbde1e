"""`stillhouse view --follow`, `convert` and `export`: what they say of what they read, wrote and left."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from flows.verbs.data import ExportForm, ForeignForm
from stillhouse.interop.export import Form
from stillhouse.interop.formats import FormatName
from stillhouse.store.records import read_jsonl, write_jsonl
from stillhouse.store.runs import RECENT_FILE, RunRecord, write_run_record
from stillhouse.types import Message, StopReason, Trajectory, Turn


def _answered(question: str) -> Trajectory:
    messages: list[Message] = [{"role": "user", "content": question}, {"role": "assistant", "content": "5"}]
    turn = Turn("stop", {"prompt_tokens": 9, "completion_tokens": 4}, 0.1, "m")
    return Trajectory(question, question, 0, messages, [], [turn], StopReason.ANSWERED, "m")


@pytest.mark.slow
def test_the_page_of_a_run_under_way_is_written_anew_until_it_ends(shell, tmp_path: Path) -> None:
    folder, page = tmp_path / "runs/reports/1-distill-a", tmp_path / "page.html"
    write_run_record(
        folder, RunRecord("distill", "2026-01-01", None, None, "lucky-quokka", {"rollouts": [str(folder)]})
    )
    write_jsonl(folder / RECENT_FILE, [_answered("2 + 3?")])

    def end() -> None:
        while not page.exists():
            time.sleep(0.05)
        assert 'data-reload="5"' in page.read_text()
        write_jsonl(folder / "trajectories.jsonl", [_answered("2 + 3?"), _answered("1 + 4?")])
        (folder / RECENT_FILE).unlink()

    with ThreadPoolExecutor() as pool:
        ended = pool.submit(end)
        code, output = shell("view", "--follow", "--no-open", "-o", str(page))
        ended.result()
    assert (code, "1 trajectories" in output) == (0, True), output
    assert "data-reload" not in page.read_text().partition("<script>")[0]
    code, output = shell("view", "--follow", "--store", "s3://bucket/runs")
    assert (code, "--follow is for a run of this machine" in output) == (2, True), output


def test_convert_says_what_it_read_wrote_and_left(shell, tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "What is 2 + 2?"}]
    rollout = {"completed": True, "success": True, "total_reward": 1.0}
    rollout["conversation"] = [*asked, {"role": "assistant", "content": "4"}]
    folder = tmp_path / "rollouts" / "rollout_1"
    folder.mkdir(parents=True)
    (folder / "sample_1.json").write_text(json.dumps(rollout))
    (folder / "sample_2.json").write_text(json.dumps(rollout | {"completed": "error", "error": "HTTP 500"}))
    (folder / "sample_3.json").write_text(json.dumps(rollout)[:40])
    code, output = shell("convert", "rollouts", "-o", "out", "--teacher", "gpt-5.2")
    assert code == 0
    assert "rollouts as rnow-rollouts: 3 rows in 3 files, 2 left out" in output
    assert "out/trajectories.jsonl: 1 trajectory" in output
    assert "sample_2.json: error = HTTP 500" in output
    assert "sample_3.json: expected a JSON object" in output
    assert [row["model"] for row in read_jsonl(tmp_path / "out/trajectories.jsonl")] == ["gpt-5.2"]
    code, output = shell("convert", "rollouts", "-o", "out", "--include-failed")
    assert (code, "2 trajectories" in output) == (0, True)
    code, output = shell("convert", "rollouts/rollout_1/sample_2.json", "-o", "out")
    assert (code, "none of 1 rows of rnow-rollouts could be converted" in output) == (1, True)
    assert len(list(read_jsonl(tmp_path / "out/trajectories.jsonl"))) == 2  # what stood there stands


def test_the_verbs_offer_every_form_that_can_be_read_and_written() -> None:
    assert get_args(ForeignForm) == (*get_args(FormatName), "auto")
    assert get_args(ExportForm) == get_args(Form)


def test_export_explains_what_is_no_dataset(shell, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, output = shell("export", "empty", "-o", "out.jsonl")
    assert (code, "expected the folder of a dataset, with train.parquet" in output) == (2, True)
    code, output = shell("export", "-o", "out.jsonl")
    assert (code, "No run has begun in this store" in output) == (2, True)
    record = RunRecord("generate", "2026-01-01T00:00:00+00:00", None, None, "quiet-still", {"rollouts": []})
    write_run_record(tmp_path / "runs/reports/20260101-000000", record)
    code, output = shell("export", "quiet-still", "-o", "out.jsonl")
    assert (code, "it made no dataset; its stages: rollouts" in output) == (1, True)
    write_run_record(tmp_path / "runs/reports/20260101-000000", replace(record, artifacts={"dataset": ["gone"]}))
    code, output = shell("export", "runs/reports/20260101-000000", "-o", "out.jsonl")
    assert (code, "its dataset gone is gone" in output) == (1, True)
    assert not (tmp_path / "out.jsonl").exists()
