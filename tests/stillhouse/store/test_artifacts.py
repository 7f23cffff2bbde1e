from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.store import ArtifactStore
from stillhouse.store.artifacts import artifact_in
from stillhouse.types import Artifact, JsonObject

KEY = "0123456789abcdef0123"


def write(store: ArtifactStore, text: str = "one\n", key: str = KEY) -> Artifact:
    def fill(folder: Path) -> tuple[int, JsonObject]:
        (folder / "deep").mkdir()
        (folder / "rows.txt").write_text(text)
        (folder / "deep" / "more.txt").write_text("more")
        return 1, {"seconds": 2.0}

    return store.write("stage", key, fill)


def test_a_written_artifact_is_whole(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    artifact = write(store)
    assert (Path(artifact.uri) / "rows.txt").read_text() == "one\n"
    assert (artifact.num_rows, artifact.facts) == (1, {"seconds": 2.0})
    assert store.problem(artifact) is None
    assert artifact_in(Path(artifact.uri)) == artifact
    assert artifact_in(tmp_path) is None


def test_equal_content_has_an_equal_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    first = write(ArtifactStore(tmp_path / "a"))
    second = write(ArtifactStore(tmp_path / "b"), key="f" * 20)
    third = write(ArtifactStore(tmp_path / "c"), text="two\n")
    assert first.fingerprint == second.fingerprint != third.fingerprint


def test_a_second_write_under_the_same_key_replaces_the_first(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    old = write(store)
    new = write(store, text="two\n")
    assert new.uri == old.uri
    assert store.problem(new) is None
    assert "another artifact" in (store.problem(old) or "")


@pytest.mark.parametrize("name", ["rows.txt", "deep/more.txt"])
def test_a_deleted_file_is_noticed(tmp_path: Path, name: str) -> None:
    store = ArtifactStore(tmp_path)
    artifact = write(store)
    (Path(artifact.uri) / name).unlink()
    assert f"{name} is gone" in (store.problem(artifact) or "")


def test_an_altered_byte_is_noticed(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    artifact = write(store)
    (Path(artifact.uri) / "rows.txt").write_text("0ne\n")
    assert "was altered" in (store.problem(artifact) or "")


def test_a_missing_folder_is_noticed(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    artifact = write(store)
    Path(artifact.uri).rename(tmp_path / "elsewhere")
    assert "is gone" in (store.problem(artifact) or "")


def test_a_failure_while_writing_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    artifact = write(store)

    def fail(folder: Path) -> tuple[int, JsonObject]:
        (folder / "rows.txt").write_text("half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        store.write("stage", KEY, fail)
    assert store.problem(artifact) is None
    assert [path.name for path in (tmp_path / "artifacts" / "stage").iterdir()] == [KEY[:16]]


def test_a_folder_that_cannot_be_made_is_a_store_error_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("a file where a folder belongs")
    with pytest.raises(StoreError, match=r"cannot be written.*runtime\.store.*what finished is kept"):
        write(ArtifactStore(tmp_path))


def test_a_full_disk_is_a_store_error(tmp_path: Path) -> None:
    def fill(_folder: Path) -> tuple[int, JsonObject]:
        with Path("/dev/full").open("wb", buffering=0) as file:
            file.write(b"x")
        return 0, {}

    with pytest.raises(StoreError, match="No space left on device"):
        ArtifactStore(tmp_path).write("stage", KEY, fill)


def test_a_store_that_was_moved_knows_its_artifacts(tmp_path: Path) -> None:
    old = write(ArtifactStore(tmp_path / "old"))
    (tmp_path / "old").rename(tmp_path / "new")
    store = ArtifactStore(tmp_path / "new")
    moved = store.here(old)
    assert store.problem(moved) is None
    assert artifact_in(Path(moved.uri)) == moved
