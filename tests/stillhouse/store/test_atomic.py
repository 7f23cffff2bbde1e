from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.store.atomic import write_atomic


def test_the_file_is_replaced_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_bytes(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "inside").write_text("kept")
    with pytest.raises(StoreError, match="cannot be written"):
        write_atomic(path, b"new")
    assert (path / "inside").read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_can_be_read_by_those_the_umask_allows(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"x")
    (tmp_path / "plain").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_name_relative_to_this_folder_is_written_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomic(Path("file"), b"x")
    assert (tmp_path / "file").read_bytes() == b"x"
    with pytest.raises(StoreError, match="cannot be written"):
        write_atomic(Path("."), b"x")
