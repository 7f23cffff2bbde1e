import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stillhouse.config import DatasetConfig
from stillhouse.dataset.build import build_dataset
from stillhouse.dataset.export import export_rows
from stillhouse.dataset.read import read_rows
from stillhouse.errors import ConfigError, StoreError
from stillhouse.types import StopReason, Trajectory


@pytest.fixture
def folder(tmp_path: Path, make_trajectory: Callable[..., Trajectory], metadata_for: Callable) -> Path:
    trajectories = [make_trajectory(number) for number in range(40)]
    trajectories.append(make_trajectory(40, stop_reason=StopReason.MAX_TURNS))
    config = DatasetConfig(render_check=False, validation_fraction=0.25)
    folder = tmp_path / "dataset"
    folder.mkdir()
    build_dataset(trajectories, metadata_for(trajectories), config, tokenizer_ref="unused", max_length=9, folder=folder)
    return folder


def kept(folder: Path) -> list[dict]:
    return [row for split in ("train", "validation") for row in read_rows(folder, split)]


def test_jsonl_holds_every_kept_row_with_messages_and_full_tool_schemas_as_they_were(folder: Path) -> None:
    output = folder.parent / "out" / "rows.jsonl"
    assert export_rows(folder, output) == 40
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["messages"] for line in lines] == [row["messages"] for row in kept(folder)]
    assert all(line["tools"][0]["function"]["parameters"]["properties"] for line in lines)
    assert lines[0]["metadata"]["expected_answer"] == "5"
    assert lines[0]["metadata"]["verified"] is True


def test_parquet_holds_every_kept_row_with_all_columns(folder: Path) -> None:
    output = folder.parent / "rows.parquet"
    assert export_rows(folder, output) == 40
    assert pq.read_schema(output).equals(pq.read_schema(folder / "train.parquet"), check_metadata=True)
    assert pq.read_table(output).column("id").to_pylist() == [row["id"] for row in kept(folder)]


def test_without_a_render_check_no_tokens_are_counted_and_the_card_says_so(folder: Path) -> None:
    assert {row["num_tokens"] for row in kept(folder)} == {None}
    assert "dataset.render_check is off" in (folder / "README.md").read_text()


def test_another_ending_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows\.csv: expected a name ending in \.jsonl or \.parquet"):
        export_rows(folder, folder / "rows.csv")


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(folder: Path) -> None:
    (folder.parent / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        export_rows(folder, folder.parent / "file" / "rows.jsonl")
