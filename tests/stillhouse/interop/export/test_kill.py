"""`kill -9` of an export that replaces an earlier one: what is there is the one or the other."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stillhouse.interop.export import Form, export_dataset
from stillhouse.store import file_sha256

PROGRAM = """
    import os, sys
    from pathlib import Path
    import huggingface_hub.repocard
    from stillhouse.interop.export import export_dataset

    parent, form, *folders = sys.argv[1:]

    def write(number):
        # A folder for the hub is never replaced.
        name = f"{os.getpid()}-{number}" if form == "hf" else "rows"
        export_dataset(Path(folders[number % 2]), Path(parent, name), form)
"""


@pytest.mark.parametrize("form", ["openai", "parquet", "hf"])
def test_an_export_is_old_or_new_or_absent(
    tmp_path: Path, dataset: Path, kill_writers: Callable[..., Iterator[int]], form: Form
) -> None:
    other = tmp_path / "other"
    shutil.copytree(dataset, other)
    shutil.copyfile(other / "rejected.parquet", other / "train.parquet")
    versions = []
    for folder in (dataset, other):
        export_dataset(folder, tmp_path / f"{folder.name} exported", form)
        versions.append(hashes_in(tmp_path / f"{folder.name} exported"))
    exports = tmp_path / "exports"
    exports.mkdir()
    seen, num_left_over = set(), 0
    for _ in kill_writers(PROGRAM, exports, form, dataset, other, num_kills=20, num_changes=24, seed=13):
        whole = [path for path in exports.iterdir() if not path.name.startswith(".")]
        seen.update(versions.index(hashes_in(path)) for path in whole)
        num_left_over += len(list(exports.iterdir())) - len(whole)
    assert seen == {0, 1}
    assert num_left_over > 0, "the writers were expected to be killed in mid-write"


def hashes_in(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): file_sha256(file) for file in files}
