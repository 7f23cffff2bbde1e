"""Records of results on S3, for which moto's server answers: Prefect writes on one machine and reads on another."""

import json
from pathlib import Path
from typing import Any

from prefect.filesystems import LocalFileSystem
from prefect.results import ResultStore
from prefect.serializers import JSONSerializer
from pydantic import BaseModel, ConfigDict

from stillhouse.store import ArtifactStore
from stillhouse.store.records import write_jsonl
from stillhouse.types import Artifact
from tasks.cache.results import artifacts_in, download_record, results_folder, upload_result, with_local_paths

URL = "s3://bucket/runs"
KEY = "dataset/v1-0123"


class Pair(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: Artifact
    more: tuple[Artifact, ...]


def results_of(store: ArtifactStore) -> ResultStore:
    folder = LocalFileSystem(basepath=str(results_folder(store)))
    return ResultStore(result_storage=folder, serializer=JSONSerializer())


def make(store: ArtifactStore, text: str = "one") -> Pair:
    def write(stage: str) -> Artifact:
        return store.write(stage, "0" * 16, lambda folder: (write_jsonl(folder / "rows.jsonl", [{"text": text}]), {}))

    pair = Pair(rows=write("rows"), more=(write("more"),))
    results_of(store).write(pair, key=KEY)
    return pair


def test_a_result_is_found_on_another_machine_with_the_bytes_it_stands_for(s3: Any, tmp_path: Path) -> None:
    there, other = ArtifactStore(URL, tmp_path / "there"), ArtifactStore(URL, tmp_path / "other")
    pair = make(there)
    assert download_record(there, KEY) is None
    upload_result(pair, KEY, None, there)
    shared = download_record(other, KEY)
    # Without the path to which it was written.
    assert json.loads(shared or b"")["metadata"]["storage_key"] == KEY
    own = json.loads((results_folder(other) / KEY).read_bytes())
    assert own["metadata"]["storage_key"] == str(results_folder(other) / KEY)
    found = with_local_paths(results_of(other).read(KEY).result, other)
    assert [artifact.fingerprint for artifact in artifacts_in(found)] == [pair.rows.fingerprint] * 2
    for artifact in artifacts_in(found):
        assert other.obtain(artifact) is None
        assert (Path(artifact.uri) / "rows.jsonl").read_text() == '{"text":"one"}\n'
        assert Path(artifact.uri).is_relative_to(tmp_path / "other")


def test_the_record_goes_last_and_one_that_is_shared_is_only_read(s3: Any, tmp_path: Path) -> None:
    there, other = ArtifactStore(URL, tmp_path / "there"), ArtifactStore(URL, tmp_path / "other")
    pair = make(there)
    upload_result(pair, KEY, None, there)
    puts = [path for method, path in s3.asked if method == "PUT"]
    assert puts[-1].endswith(KEY)
    for store in (there, other):
        s3.asked.clear()
        shared = download_record(store, KEY)
        upload_result(pair, KEY, shared, store)
        assert set(s3.asked) <= {(method, f"/bucket/runs/results/{KEY}") for method in ("HEAD", "GET")}


def test_a_result_made_again_elsewhere_takes_the_place_of_ones_own(s3: Any, tmp_path: Path) -> None:
    there, other = ArtifactStore(URL, tmp_path / "there"), ArtifactStore(URL, tmp_path / "other")
    upload_result(make(other), KEY, None, other)
    new = make(there, text="two")
    upload_result(new, KEY, download_record(there, "no/such-key"), there)
    download_record(other, KEY)
    found = with_local_paths(results_of(other).read(KEY).result, other)
    assert found.rows.fingerprint == new.rows.fingerprint
    assert other.obtain(found.rows) is None


def test_a_store_that_is_a_folder_has_nothing_to_share(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    pair = make(store)
    before = (results_folder(store) / KEY).read_bytes()
    assert download_record(store, KEY) is None
    upload_result(pair, KEY, None, store)
    assert (results_folder(store) / KEY).read_bytes() == before
