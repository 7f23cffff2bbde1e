import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.errors import StoreError
from stillhouse.inference.scoring.scores import TopLogprobs
from stillhouse.training.on_policy.batches.batch import RolloutBatch, read_batch, write_batch
from stillhouse.training.on_policy.scored import ScoredSample, TeacherView


def sample(prompt_id: str, **known: object) -> ScoredSample:
    return ScoredSample([5, 6, 7], [False, True, True], prompt_id, sampling_logprobs=[0.0, -0.1, -1 / 3], **known)  # type: ignore[arg-type]


def test_a_batch_is_read_as_it_was_written_to_the_last_bit(tmp_path: Path) -> None:
    view = TeacherView([1, 5, 6, 7], [False, False, True, True])
    parts = [
        [
            sample(
                "a",
                teacher="big",
                kl_coef=0.5,
                teacher_logprobs=[0.0, math.log(0.3), -1e-17],
                weight=1 / 7,
            )
        ],
        [sample("b", tag="math", teacher_view=view, policy_version=3), sample("b", advantages=[0.0, 0.1, 0.2])],
    ]
    batch = RolloutBatch(4, 12, parts, {"reward": 1 / 3})
    write_batch(tmp_path / "b.parquet", batch)
    assert read_batch(tmp_path / "b.parquet") == batch
    assert batch.num_sampled_tokens == 6


def test_most_probable_tokens_are_read_as_they_were_written(tmp_path: Path) -> None:
    top = TopLogprobs.rounded(np.array([[5, 9, 2], [7, 1, 640]]), np.log([[0.5, 0.2, 0.1], [0.9, 0.05, 0.01]]))
    batch = RolloutBatch(0, 0, [[sample("a", teacher_top=top), sample("b")]])
    write_batch(tmp_path / "b.parquet", batch)
    [[first, second]] = read_batch(tmp_path / "b.parquet").parts
    assert second.teacher_top is None
    for name in TopLogprobs.__slots__:
        seen, written = getattr(first.teacher_top, name), getattr(top, name)
        assert seen.dtype == written.dtype
        assert np.array_equal(seen, written)


def test_a_batch_of_a_version_whose_tokens_had_weights_is_read(tmp_path: Path) -> None:
    path = tmp_path / "b.parquet"
    write_batch(path, RolloutBatch(0, 0, [[sample("a")]], {"reward": 1.0}))
    pq.write_table(pq.read_table(path).append_column("token_weights", pa.nulls(1)), path)
    assert read_batch(path) == RolloutBatch(0, 0, [[sample("a")]], {"reward": 1.0})


def test_a_batch_of_which_nothing_could_be_sampled_is_a_batch(tmp_path: Path) -> None:
    batch = RolloutBatch(0, 0, [[], []], {"truncated_share": 1.0})
    write_batch(tmp_path / "b.parquet", batch)
    assert read_batch(tmp_path / "b.parquet") == batch


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"", lambda data: b"PAR1" + data[4:-4]])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "b.parquet"
    write_batch(path, RolloutBatch(0, 0, [[sample("a")]]))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match=r"b\.parquet: .*Delete"):
        read_batch(path)
