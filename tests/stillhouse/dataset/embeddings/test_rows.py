from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.dataset.embeddings.rows import prompt_text, write_embeddings
from stillhouse.errors import EndpointError
from stillhouse.types import Trajectory

MakeTrajectory = Callable[..., Trajectory]


def vector(*numbers: float) -> Any:
    return np.array(numbers, dtype=np.float32)


def test_rows_of_one_prompt_share_a_vector_and_rows_without_text_have_none(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.parquet"
    vectors = {"a": vector(1.0, 0.0), "b": vector(0.6, 0.8)}
    assert write_embeddings(path, ["b", None, "a", "b"], vectors) == 4
    column = pq.read_table(path)["embedding"]
    assert column.type == pa.list_(pa.float32())
    assert column.to_pylist() == [pytest.approx([0.6, 0.8]), None, [1.0, 0.0], pytest.approx([0.6, 0.8])]


def test_a_shard_without_any_text_has_only_nulls(tmp_path: Path) -> None:
    assert write_embeddings(tmp_path / "e.parquet", [None, None], {}) == 2
    assert pq.read_table(tmp_path / "e.parquet")["embedding"].to_pylist() == [None, None]


def test_vectors_of_two_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="2 and 3 dimensions"):
        write_embeddings(tmp_path / "e.parquet", ["a", "b"], {"a": vector(1, 0), "b": vector(1, 0, 0)})


def test_the_text_is_what_the_user_said_before_the_model_did(make_trajectory: MakeTrajectory) -> None:
    one = make_trajectory()
    with_system = make_trajectory(messages=[{"role": "system", "content": "You are kind."}, *one.messages])
    expected = "Anna has 2 apples. Anna buys 3 more. Case 0."
    assert prompt_text(one) == prompt_text(with_system) == expected
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    assert prompt_text(make_trajectory(messages=[{"role": "user", "content": picture}], turns=[])) is None
