"""A store is for its owner alone, or for a group, whatever the umask was when it was written."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stillhouse.store import ArtifactStore
from stillhouse.store.private import private_file, private_folder, private_umask
from stillhouse.types import JsonObject


@pytest.fixture(autouse=True)
def _lax_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _fill(folder: Path) -> tuple[int, JsonObject]:
    (folder / "deep").mkdir()
    (folder / "deep" / "rows.jsonl").write_text("{}\n")
    return 1, {}


def _open_to_others(root: Path) -> dict[str, str]:
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    return {str(path.relative_to(root)): oct(mode) for path, mode in modes.items() if mode & 0o077}


def test_folders_and_files_of_a_new_store_are_for_their_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    ArtifactStore(root).write("stage", "0123456789abcdef", _fill)
    assert _open_to_others(root) == {}
    assert (root.stat().st_mode & 0o777, (root / "artifacts").stat().st_mode & 0o777) == (0o700, 0o700)


def test_a_store_that_others_could_enter_is_tightened_when_it_is_opened(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "artifacts" / "stage").mkdir(parents=True)
    (root / "artifacts" / "stage" / "rows.jsonl").write_text("{}\n")
    (root / "journal.sqlite3").write_bytes(b"")
    (root / "my notes").mkdir()
    (root / "my notes" / "run.sh").touch(0o755)
    ArtifactStore(root).check()
    # What no run left there is the user's own business; nobody else can enter the folder any more.
    assert _open_to_others(root) == {"my notes": "0o777", "my notes/run.sh": "0o755"}


def test_a_folder_that_the_system_keeps_for_everybody_stays_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    ArtifactStore(shared).check()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_links_are_not_followed_out_of_the_store(tmp_path: Path) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside.txt"
    outside.touch(0o644)
    (root / "artifacts").mkdir(parents=True)
    (root / "artifacts" / "link").symlink_to(outside)
    ArtifactStore(root).check()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644


def test_all_files_of_a_database_are_for_their_owner_alone(tmp_path: Path) -> None:
    private_folder(tmp_path / "store")
    path = tmp_path / "store" / "journal.sqlite3"
    private_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE entry (body)")
        names = {file.name for file in path.parent.iterdir()}
        assert names == {"journal.sqlite3", "journal.sqlite3-wal", "journal.sqlite3-shm"}
        for file in path.parent.iterdir():
            file.chmod(0o644)
        private_file(path)
        assert _open_to_others(path.parent) == {}


def test_what_a_run_makes_is_for_its_owner_and_what_comes_after_is_as_before(tmp_path: Path) -> None:
    with private_umask():
        (tmp_path / "inside").touch(0o666)
    (tmp_path / "after").touch(0o666)
    assert stat.S_IMODE((tmp_path / "inside").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "after").stat().st_mode) == 0o666


def _modes(root: Path) -> set[tuple[bool, int]]:
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (root, *root.rglob("*"))}


GROUPS = {(True, 0o2770), (False, 0o660)}


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_groups_store_is_for_its_group_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "store"
    os.umask(umask)
    store = ArtifactStore(root)
    store.make("group")
    store.write("stage", "0123456789abcdef", _fill)
    private_folder(root / "journal-claims")
    private_file(root / "journal.sqlite3")
    assert _modes(root) == GROUPS
    with private_umask(root):
        (root / "limits.json").touch()
    assert _modes(root) == GROUPS


def test_a_groups_store_stays_so_until_a_run_of_its_owner_says_otherwise(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = ArtifactStore(root)
    store.write("stage", "0123456789abcdef", _fill)
    store.make("group")
    store.check()
    store.write("stage", "fedcba9876543210", _fill)
    assert _modes(root) == GROUPS
    store.make("private")
    assert _open_to_others(root) == {}


def test_a_private_store_in_a_groups_folder_stays_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    ArtifactStore(tmp_path / "store").write("stage", "0123456789abcdef", _fill)
    assert _open_to_others(tmp_path / "store") == {}
