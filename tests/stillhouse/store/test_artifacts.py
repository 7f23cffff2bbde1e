import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.store import ArtifactStore
from stillhouse.store.artifacts import artifact_in, require_whole
from stillhouse.store.manifest import MANIFEST
from stillhouse.types import Artifact, JsonObject

KEY = "0123456789abcdef0123"


def write(store: ArtifactStore, text: str = "one\n", key: str = KEY) -> Artifact:
    def fill(folder: Path) -> tuple[int, JsonObject]:
        (folder / "deep").mkdir()
        (folder / "rows.txt").write_text(text)
        (folder / "deep" / "more.txt").write_text("more")
        return 1, {"seconds": 2.0}

    return store.write("stage", key, fill)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


@pytest.fixture
def artifact(store: ArtifactStore) -> Artifact:
    return write(store)


def test_a_written_artifact_is_whole(tmp_path: Path, store: ArtifactStore, artifact: Artifact) -> None:
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


def test_a_second_write_under_the_same_key_replaces_the_first(store: ArtifactStore, artifact: Artifact) -> None:
    new = write(store, text="two\n")
    assert new.uri == artifact.uri
    assert store.problem(new) is None
    assert "another artifact" in (store.problem(artifact) or "")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "rows.txt").unlink(), "rows.txt is gone"),
        (lambda folder: (folder / "deep/more.txt").unlink(), "deep/more.txt is gone"),
        (lambda folder: (folder / "rows.txt").write_text("0ne\n"), "was altered"),
        (lambda folder: folder.rename(folder.with_name("elsewhere")), "is gone"),
    ],
    ids=["file gone", "deep file gone", "byte altered", "folder gone"],
)
def test_damage_is_found(
    store: ArtifactStore, artifact: Artifact, damage: Callable[[Path], object], problem: str
) -> None:
    damage(Path(artifact.uri))
    assert problem in (store.problem(artifact) or "")


MANIFESTS = {
    "empty object": b"{}",
    "nothing": b"",
    "no JSON": b"\xff\xfe not JSON",
    "list": b"[]",
    "size of another type": b'{"artifact": {"uri": "u", "fingerprint": "f", "num_rows": 1}, '
    b'"files": {"rows.txt": {"size": "four", "sha256": 3}}}',
}


@pytest.mark.parametrize("content", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_damaged_manifest_is_a_damaged_artifact(content: bytes, store: ArtifactStore, artifact: Artifact) -> None:
    (Path(artifact.uri) / MANIFEST).write_bytes(content)
    assert f"{MANIFEST} cannot be read" in (store.problem(artifact) or "")
    assert artifact_in(Path(artifact.uri)) is None


def test_an_artifact_that_cannot_be_read_is_an_error_and_not_made_again(
    store: ArtifactStore, artifact: Artifact
) -> None:
    (Path(artifact.uri) / "rows.txt").chmod(0)
    user = os.geteuid()
    if user == 0:  # who may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(StoreError, match=r"cannot be read: .*Permission denied"):
            store.problem(artifact)
    finally:
        os.seteuid(user)


def test_every_changed_byte_of_a_manifest_is_found_except_in_its_uri(store: ArtifactStore, artifact: Artifact) -> None:
    path = Path(artifact.uri) / MANIFEST
    data = path.read_bytes()
    # Never read: a store may have been moved.
    start = data.index(artifact.uri.encode())
    for index in set(range(len(data))) - set(range(start, start + len(artifact.uri))):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        assert store.problem(artifact) is not None, data[max(0, index - 20) : index + 5]


def test_figures_of_a_record_that_changed_are_noticed(store: ArtifactStore, artifact: Artifact) -> None:
    for change in ({"num_rows": 9}, {"facts": {"seconds": 2.5}}):
        assert "disagree about its figures" in (store.problem(artifact.model_copy(update=change)) or "")


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/hostname"])
def test_a_manifest_that_names_a_place_outside_is_refused(name: str, store: ArtifactStore, artifact: Artifact) -> None:
    path = Path(artifact.uri) / MANIFEST
    path.write_bytes(path.read_bytes().replace(b"rows.txt", name.encode()))
    assert "no place inside the artifact" in (store.problem(artifact) or "")


@pytest.mark.parametrize("name", ["rows.txt", "deep/another.txt"])
def test_a_link_in_an_artifact_is_damage(tmp_path: Path, name: str, store: ArtifactStore, artifact: Artifact) -> None:
    (tmp_path / "elsewhere.txt").write_text("one\n")
    path = Path(artifact.uri) / name
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "elsewhere.txt")
    assert "is a link" in (store.problem(artifact) or "")


def test_readers_refuse_a_damaged_artifact_and_leave_other_folders_alone(tmp_path: Path) -> None:
    artifact = write(ArtifactStore(tmp_path))
    require_whole(Path(artifact.uri))
    (tmp_path / "mine").mkdir()
    require_whole(tmp_path / "mine")
    (Path(artifact.uri) / "rows.txt").write_text("0ne\n")
    with pytest.raises(StoreError, match=r"rows\.txt"):
        require_whole(Path(artifact.uri))


def test_a_failed_write_keeps_the_old_artifact(tmp_path: Path, store: ArtifactStore, artifact: Artifact) -> None:

    def fail(folder: Path) -> tuple[int, JsonObject]:
        (folder / "rows.txt").write_text("half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        store.write("stage", KEY, fail)
    assert store.problem(artifact) is None
    assert [path.name for path in (tmp_path / "artifacts" / "stage").iterdir()] == [KEY[:16]]


def test_a_folder_that_cannot_be_made_is_a_store_error_with_the_remedy(tmp_path: Path, store: ArtifactStore) -> None:
    (tmp_path / "artifacts").write_text("a file where a folder belongs")
    with pytest.raises(StoreError, match=r"runtime\.store"):
        write(ArtifactStore(tmp_path))


def test_a_full_disk_is_a_store_error(tmp_path: Path) -> None:
    def fill(_folder: Path) -> tuple[int, JsonObject]:
        with Path("/dev/full").open("wb", buffering=0) as file:
            file.write(b"x")
        return 0, {}

    with pytest.raises(StoreError, match="No space left"):
        ArtifactStore(tmp_path).write("stage", KEY, fill)


def test_a_store_that_was_moved_knows_its_artifacts(tmp_path: Path) -> None:
    old = write(ArtifactStore(tmp_path / "old"))
    (tmp_path / "old").rename(tmp_path / "new")
    store = ArtifactStore(tmp_path / "new")
    moved = store.here(old)
    assert store.problem(moved) is None
    assert artifact_in(Path(moved.uri)) == moved
