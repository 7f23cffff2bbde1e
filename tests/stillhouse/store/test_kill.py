"""`kill -9` of a process that replaces one small artifact without end: most of its time goes into the replacing."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stillhouse.store import ArtifactStore
from stillhouse.types import Artifact, JsonObject

PROGRAM = """
    import sys
    from pathlib import Path
    from stillhouse.store import ArtifactStore

    store = ArtifactStore(sys.argv[1])

    def write(number):
        def fill(folder):
            (folder / "rows").write_text(str(number % 2))
            return 1, {}
        store.write("stage", "key", fill)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is a moment in which neither has the name")
def test_artifacts_are_old_or_new_and_left_overs_go(tmp_path: Path, kill_writers: Callable[..., Iterator[int]]) -> None:
    store = ArtifactStore(tmp_path)

    def write(text: str) -> Artifact:
        def fill(folder: Path) -> tuple[int, JsonObject]:
            (folder / "rows").write_text(text)
            return 1, {}

        return store.write("stage", "key", fill)

    known = [write("0"), write("1")]
    stage = tmp_path / "artifacts" / "stage"
    seen, num_left_over = set(), 0
    for _ in kill_writers(PROGRAM, tmp_path, num_kills=60, num_changes=24, seed=7):
        whole = [artifact.fingerprint for artifact in known if store.problem(artifact) is None]
        assert len(whole) == 1
        seen.update(whole)
        num_left_over += len(list(stage.iterdir())) - 1
        assert len(list(stage.iterdir())) <= 2
    assert len(seen) == 2
    assert num_left_over > 10, "the writers were expected to be killed in mid-write"
    write("0")
    assert [path.name for path in stage.iterdir()] == ["key"]
