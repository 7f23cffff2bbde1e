"""`kill -9` of a conversion that replaces an earlier one: the folder is the one or the other."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stillhouse.interop import convert
from stillhouse.store import file_sha256
from stillhouse.types import JsonObject

PROGRAM = """
    import sys
    from pathlib import Path
    from stillhouse.interop import convert

    output, *sources = map(Path, sys.argv[1:])

    def write(number):
        convert(sources[number % 2], output)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is a moment in which neither has the name")
def test_a_conversion_is_the_old_one_or_the_new_one_and_what_is_left_over_goes(
    tmp_path: Path,
    rollout: Callable[..., JsonObject],
    write: Callable[..., Path],
    kill_writers: Callable[..., Iterator[int]],
) -> None:
    sources = [tmp_path / "first", tmp_path / "second"]
    output = tmp_path / "converted" / "folder"
    versions = []
    for source in sources:
        for number in range(10):
            write(source / f"{number}.json", rollout(id=f"{source.name} {number}", reason="not known here"))
        convert(source, output)
        versions.append(hashes_in(output))
    assert versions[0] != versions[1]

    seen, num_left_over = set(), 0
    for _ in kill_writers(PROGRAM, output, *sources, num_kills=40, num_changes=24, seed=5):
        seen.add(versions.index(hashes_in(output)))
        num_left_over += len(list(output.parent.iterdir())) - 1
    assert seen == {0, 1}
    assert num_left_over > 0, "the writers were expected to be killed in mid-write"
    convert(sources[0], output)
    assert [path.name for path in output.parent.iterdir()] == ["folder"]


def hashes_in(folder: Path) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in folder.iterdir()}
