import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.errors import StoreError
from stillhouse.inference.scoring.scores import TopLogprobs
from stillhouse.training.on_policy.batches.batch import read_batch, write_batch
from stillhouse.training.on_policy.table import RolloutTable
from stillhouse.types import Sample
from tests.stillhouse.training.on_policy.tables import One, table_of

VIEW = Sample([1, 5, 6, 7], [False, False, True, True], "b")
TOP = TopLogprobs.rounded(np.array([[5, 9, 2], [7, 1, 640]]), np.log([[0.5, 0.2, 0.1], [0.9, 0.05, 0.01]]))


def one(prompt_id: str, **known: object) -> One:
    return One([5, 6, 7], [0, 1, 1], prompt_id, [0.0, -0.1, -1 / 3], **known)  # type: ignore[arg-type]


def assert_same(seen: RolloutTable, expected: RolloutTable) -> None:
    for name in (field.name for field in fields(RolloutTable)):
        value, known = getattr(seen, name), getattr(expected, name)
        if isinstance(known, np.ndarray):
            assert value.dtype == known.dtype, name
            np.testing.assert_array_equal(value, known, name)
        elif name == "teacher_view":
            assert [view and (list(view.token_ids), list(view.loss_mask), view.prompt_id) for view in value] == [
                view and (view.token_ids, view.loss_mask, view.prompt_id) for view in known
            ]
        elif name != "teacher_top":
            assert value == known, name


def test_a_batch_is_read_as_it_was_written_to_the_last_bit(tmp_path: Path) -> None:
    batch = table_of(
        [
            one(
                "a", teacher="big", kl_coef=0.5, scored=[0.0, math.log(0.3), -1e-17], weight=1 / 7, advantages=[0.0] * 3
            ),
            one("b", tag="math", view=VIEW, policy_version=3, part=1, advantages=[0.0, 0.1, 0.2]),
            One([3], [0], "c", route="math", part=1, advantages=[0.0]),
        ],
        index=4,
        num_parts=2,
        reward=1 / 3,
    )
    write_batch(tmp_path / "b.parquet", batch)
    assert_same(read_batch(tmp_path / "b.parquet"), batch)
    batch.old_logprobs = batch.sampling_logprobs / 3
    write_batch(tmp_path / "b.parquet", batch)
    assert_same(read_batch(tmp_path / "b.parquet"), batch)


def test_most_probable_tokens_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_batch(tmp_path / "b.parquet", table_of([one("a", top=TOP), one("b")]))
    first, second = read_batch(tmp_path / "b.parquet").teacher_top
    assert second is None
    for name in TopLogprobs.__slots__:
        seen, written = getattr(first, name), getattr(TOP, name)
        assert seen.dtype == written.dtype
        assert np.array_equal(seen, written)


def test_given_tokens_beside_a_teachers_own_keep_their_precision(tmp_path: Path) -> None:
    given = TopLogprobs.given(np.array([[5], [7]]), np.log(np.array([[1 / 3], [1 / 7]], np.float32)))
    write_batch(tmp_path / "b.parquet", table_of([one("a", top=given), one("b", top=TOP)]))
    first, second = read_batch(tmp_path / "b.parquet").teacher_top
    for seen, written in ((first, given), (second, TOP)):
        assert seen is not None
        assert all(np.array_equal(getattr(seen, name), getattr(written, name)) for name in TopLogprobs.__slots__)


@pytest.mark.parametrize("are_scored", [(True, True), (True, False), (False, False)])
def test_a_batch_of_a_version_that_wrote_it_row_by_row_is_read(tmp_path: Path, are_scored: tuple[bool, ...]) -> None:
    """Such a file has null columns where no trajectory has a value, and once had weights of tokens."""
    path = tmp_path / "b.parquet"
    rows = [
        {
            "token_ids": [5, 6, 7], "loss_mask": [False, True, True], "prompt_id": prompt_id, "tag": None,
            "sampling_logprobs": [0.0, -0.1, -1 / 3], "advantages": None,
            "teacher_view": {"token_ids": VIEW.token_ids, "loss_mask": VIEW.loss_mask} if prompt_id == "b" else None,
            "teacher": "big", "kl_coef": 1.0, "teacher_logprobs": [0.0, -1.0, -2.0] if is_scored else None,
            "old_logprobs": None, "route": None, "weight": 1.0, "policy_version": 2, "part": 0, "token_weights": None,
        }
        for prompt_id, is_scored in zip("ab", are_scored, strict=True)
    ]  # fmt: skip
    facts = {"index": 1, "policy_version": 2, "num_parts": 1, "metrics": {"reward": 1.0}}
    stored = pa.Table.from_pylist(rows).replace_schema_metadata({b"stillhouse.batch": json.dumps(facts)})
    pq.write_table(stored, path)
    expected = [
        one(
            prompt_id,
            teacher="big",
            kl_coef=1.0,
            scored=[0.0, -1.0, -2.0] if is_scored else None,
            policy_version=2,
            view=VIEW if prompt_id == "b" else None,
        )
        for prompt_id, is_scored in zip("ab", are_scored, strict=True)
    ]
    batch = read_batch(path)
    batch.token_ids = batch.token_ids.astype(np.int32)
    assert_same(batch, table_of(expected, index=1, reward=1.0))


def test_a_batch_of_which_nothing_could_be_sampled_is_a_batch(tmp_path: Path) -> None:
    batch = table_of([], num_parts=2, truncated_share=1.0)
    write_batch(tmp_path / "b.parquet", batch)
    assert_same(read_batch(tmp_path / "b.parquet"), batch)


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"", lambda data: b"PAR1" + data[4:-4]])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "b.parquet"
    write_batch(path, table_of([one("a")]))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match=r"b\.parquet: .*Delete"):
        read_batch(path)
