from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.store.temporary import temporary


def _left_over(path: Path) -> Path:
    """What a writer that was killed leaves: nobody holds its lock."""
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
def test_what_is_being_written_stays_also_beside_another_writer_of_the_same_name(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
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
