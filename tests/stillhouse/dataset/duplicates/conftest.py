from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.config.dataset import Comparison
from stillhouse.dataset.duplicates.find import find_duplicates
from stillhouse.dataset.duplicates.signatures import SIGNATURE_SCHEMA, signature_batch
from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.rows import candidate_row
from stillhouse.dataset.schema import CANDIDATE_COLUMNS, CandidateShard
from stillhouse.dataset.table import TableWriter
from stillhouse.types import StopReason, Trajectory, Turn


def _write_shard(trajectories: Sequence[Trajectory], config: Comparison, folder: Path) -> CandidateShard:
    folder.mkdir(parents=True)
    shard = CandidateShard(folder / "candidates.parquet", folder / "signatures.parquet")
    with TableWriter(shard.candidates, CANDIDATE_COLUMNS) as writer:
        for trajectory in trajectories:
            writer.write(candidate_row(trajectory, None, {}, None))
    inputs = [LabelInput.of(trajectory, None) for trajectory in trajectories]
    pq.write_table(
        pa.Table.from_batches([signature_batch(inputs, near=config.near)], SIGNATURE_SCHEMA), shard.signatures
    )
    return shard


@pytest.fixture(scope="session")
def make() -> Callable[..., Trajectory]:
    """A trajectory of one turn; of none where the answer is None."""

    def trajectory(
        question: str, answer: str | None, rollout: str = "a", prompt: str = "p", sample: int = 0, system: str = ""
    ) -> Trajectory:
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": question})
        if answer is not None:
            messages.append({"role": "assistant", "content": answer})
        turns = [] if answer is None else [Turn("stop", {}, 0.5, "teacher-1")]
        return Trajectory(rollout, prompt, sample, messages, [], turns, StopReason.ANSWERED, "teacher")

    return trajectory


@pytest.fixture(scope="session")
def write_shard() -> Callable[..., CandidateShard]:
    """A shard as labelling writes it."""
    return _write_shard


@pytest.fixture(scope="session")
def find(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, dict[str, Any]]]:
    """Duplicates among trajectories that are spread over shards: rows by id."""
    numbers = count()

    def run(*shards: Sequence[Trajectory], config: Comparison) -> dict[str, dict[str, Any]]:
        folder = tmp_path_factory.mktemp(f"corpus-{next(numbers)}")
        written = [_write_shard(rows, config, folder / str(number)) for number, rows in enumerate(shards)]
        parts = find_duplicates(written, config, folder / "duplicates")
        assert sorted(path.name for path in (folder / "duplicates").iterdir()) == [part.name for part in parts]
        return {
            trajectory.rollout_key: row
            for shard, part in zip(shards, parts, strict=True)
            for trajectory, row in zip(shard, pq.read_table(part).to_pylist(), strict=True)
        }

    return run
