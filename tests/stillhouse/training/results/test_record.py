import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stillhouse.config import SftSource
from stillhouse.errors import InputError
from stillhouse.store import ArtifactStore, file_sha256
from stillhouse.training.job import TrainJob
from stillhouse.training.results.record import read_record, record_of


@pytest.fixture
def sft_job(new_sft_job, tmp_path: Path) -> Callable[..., TrainJob]:
    def make(dataset_folder: Path | None, **sft: object) -> TrainJob:
        return new_sft_job(tmp_path, sft, student_ref="embedded:student", dataset_folder=dataset_folder)

    return make


def test_a_dataset_is_named_by_its_artifact_and_its_rows_are_counted(sft_job, dataset_folder: Path, tmp_path: Path):
    def fill(folder: Path) -> tuple[int, dict[str, object]]:
        for name in ("train.parquet", "validation.parquet"):
            (folder / name).write_bytes((dataset_folder / name).read_bytes())
        return 0, {}

    artifact = ArtifactStore(tmp_path).write("dataset", "0" * 16, fill)
    record = record_of(sft_job(Path(artifact.uri)), "embedded:student", {"steps": 3})
    rows = pq.read_table(dataset_folder / "train.parquet", columns=["num_tokens"])
    assert record.data["fingerprint"] == artifact.fingerprint
    assert (record.data["rows"], record.data["tokens"]) == (rows.num_rows, sum(rows["num_tokens"].to_pylist()))
    assert 0 < record.data["supervised_tokens"] < record.data["tokens"]
    assert record.teachers == ("teacher",)
    assert record.before is None


def test_a_training_on_other_conversations_alone_has_no_dataset(sft_job, dataset_folder: Path):
    source = SftSource(path=str(dataset_folder / "train.parquet"))
    record = record_of(sft_job(None, dataset_weight=0.0, sources=[source]), "embedded:student", {})
    assert (record.data, record.teachers) == ({}, ())
    assert record.config["sources"] == [file_sha256(dataset_folder / "train.parquet")]


def test_a_student_trained_on_keeps_the_record_of_where_it_started(
    sft_job, new_on_policy_job, dataset_folder: Path, prompts_file: Path, tmp_path: Path, tiny_model: str
):
    first = record_of(sft_job(dataset_folder), "embedded:student", {"steps": 3})
    start = tmp_path / "sft"
    start.mkdir()
    first.write(start)
    assert read_record(start) == first
    job = new_on_policy_job(tmp_path, {}, student_ref=str(start), teacher_ref=tiny_model)
    record = record_of(job, str(start), {})
    assert record.stages == [first, record]
    assert record.data == {"fingerprint": file_sha256(prompts_file), "rows": 16}
    (teacher,) = record.teachers
    assert teacher.startswith(f"{Path(tiny_model).name}@")


def test_a_record_that_cannot_be_read_is_an_error_with_what_was_expected(tmp_path: Path):
    (tmp_path / "student.json").write_text(json.dumps({"method": "magic"}))
    with pytest.raises(InputError, match=r"student\.json.*method"):
        read_record(tmp_path)
