"""`kill -9` while a dataset is made: what was there before, or what replaces it."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stillhouse.config import DatasetConfig, FiltersConfig, LabelsConfig, ToolsConfig
from stillhouse.config.dataset import Comparison
from stillhouse.dataset.build import assemble_dataset
from stillhouse.dataset.duplicates.find import find_duplicates
from stillhouse.dataset.labelling.label import Labelling, label_shard
from stillhouse.dataset.read import read_rows
from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.schema import CANDIDATES_FILE, SIGNATURES_FILE, CandidateShard
from stillhouse.store import ArtifactStore
from stillhouse.types import Artifact, Trajectory

Write = Callable[[str, bool], Artifact]

KillWriters = Callable[..., Iterator[int]]
SPLITS = ("train", "validation", "rejected")
NUM_ROWS = 60
DATASETS = """
    import sys
    from pathlib import Path
    import huggingface_hub.repocard, jinja2, matplotlib.backends.backend_svg, matplotlib.figure
    from stillhouse.config import DatasetConfig, FiltersConfig
    from stillhouse.dataset.build import assemble_dataset
    from stillhouse.dataset.report.origin import Origin
    from stillhouse.dataset.schema import CandidateShard
    from stillhouse.store import ArtifactStore

    store, shard = ArtifactStore(sys.argv[1]), CandidateShard(*map(Path, sys.argv[2:4]), duplicates=Path(sys.argv[4]))

    def write(number):
        config = DatasetConfig(filters=FiltersConfig(drop_wrong=number % 2 == 0), validation_fraction=0.2)
        origin = Origin(config=config, code_version="test", student=None, max_tokens=None)
        store.write("dataset", "key", lambda folder: assemble_dataset([shard], origin, folder))
"""


@pytest.fixture
def shard(tmp_path: Path, make_trajectory: Callable[..., Trajectory], metadata_for: Callable) -> CandidateShard:
    """Labelled rows, every third of them wrong."""
    rows = [make_trajectory(number, answer=f"It is {5 if number % 3 else 6}.") for number in range(NUM_ROWS)]
    labelling = Labelling(labels=LabelsConfig(render=False), tools=ToolsConfig(), tokenizer="")
    label_shard(rows, metadata_for(rows), labelling, tmp_path)
    shard = CandidateShard(tmp_path / CANDIDATES_FILE, tmp_path / SIGNATURES_FILE)
    return replace(shard, duplicates=find_duplicates([shard], Comparison(), tmp_path)[0])


@pytest.fixture
def write(tmp_path: Path, shard: CandidateShard) -> Callable[[str, bool], Artifact]:
    """Writes the dataset under a key, without the wrong rows or with them."""

    def to(key: str, drop_wrong: bool) -> Artifact:
        config = DatasetConfig(filters=FiltersConfig(drop_wrong=drop_wrong), validation_fraction=0.2)
        origin = Origin(config=config, code_version="test", student=None, max_tokens=None)
        return ArtifactStore(tmp_path).write("dataset", key, lambda folder: assemble_dataset([shard], origin, folder))

    return to


def rows_of(folder: Path) -> dict[str, list[str]]:
    return {split: [row["id"] for row in read_rows(folder, split)] for split in SPLITS}


@pytest.mark.parametrize("num_kills", [8, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is a moment in which neither has the name")
def test_datasets_are_old_or_new(
    tmp_path: Path, shard: CandidateShard, write: Write, kill_writers: KillWriters, num_kills: int
) -> None:
    store = ArtifactStore(tmp_path)
    versions = []
    for drop_wrong in (True, False):
        artifact = write("key", drop_wrong)
        versions.append((artifact, rows_of(Path(artifact.uri))))
    assert [artifact.num_rows for artifact, _ in versions] == [NUM_ROWS * 2 // 3, NUM_ROWS]

    stage = Path(versions[0][0].uri).parent
    num_seen, num_left_over = [0, 0], 0
    arguments = (tmp_path, shard.candidates, shard.signatures, shard.duplicates)
    for _ in kill_writers(DATASETS, *arguments, num_kills=num_kills, num_changes=40, seed=11):
        (found,) = [number for number, (artifact, _) in enumerate(versions) if store.problem(artifact) is None]
        assert rows_of(stage / "key") == versions[found][1]
        num_seen[found] += 1
        num_left_over += len(list(stage.iterdir())) - 1
    assert min(num_seen) > 0
    assert num_left_over > 0, "the writers were expected to be killed in mid-write"
    write("another key", True)
    assert sorted(path.name for path in stage.iterdir()) == ["another key", "key"]
