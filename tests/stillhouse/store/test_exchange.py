import sys
from pathlib import Path

import pytest

from stillhouse.store.exchange import exchange

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
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").exists()
