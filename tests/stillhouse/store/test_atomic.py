import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.store.atomic import exchange, temporary, write_atomic


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


def test_a_relative_name_is_written_like_any_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomic(Path("file"), b"x")
    assert (tmp_path / "file").read_bytes() == b"x"
    (tmp_path / "plain").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode, "as the umask allows"
    with pytest.raises(StoreError, match="cannot be written"):
        write_atomic(Path("."), b"x")


def _left_over(path: Path) -> Path:
    """Leave what a killed writer does: nobody holds its lock."""
    work = path.with_name(f".{path.name}.{'0' * 32}.part")
    if path.suffix:
        work.write_text("half")
    else:
        work.mkdir()
        (work / "rows").write_text("half")
    return work


@pytest.mark.parametrize("name", ["folder", "file.txt"])
def test_what_a_dead_writer_left_goes_at_the_next_write_into_the_same_folder(tmp_path: Path, name: str) -> None:
    work = _left_over(tmp_path / name)
    with temporary(tmp_path / "another", Path.mkdir):
        assert not work.exists()


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_two_writers_of_one_name_keep_their_work(tmp_path: Path, make: Callable[[Path], None]) -> None:
    with temporary(tmp_path / "it", make) as first, temporary(tmp_path / "it", make) as second:
        assert first != second
        assert first.exists()
        assert second.exists()
    assert list(tmp_path.iterdir()) == []


def test_what_a_file_holds_may_be_replaced_without_its_lock_being_lost(tmp_path: Path) -> None:
    with temporary(tmp_path / "it", Path.touch) as work:
        work.write_bytes(b"anew")
        with temporary(tmp_path / "it", Path.touch):
            assert work.read_bytes() == b"anew"


@pytest.mark.parametrize("name", [".it.part", ".it.1234.part", f"it.{'0' * 32}.part", f".it.{'0' * 32}"])
def test_files_of_other_names_are_nobodys_left_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with temporary(tmp_path / "it", Path.touch):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name]


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is a system call of Linux")


def test_two_folders_swap_what_is_in_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    exchange(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["a"]


def test_a_name_that_is_missing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(FileNotFoundError, match="No such file"):
        exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").exists()
