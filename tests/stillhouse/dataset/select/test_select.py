from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillhouse.config import DatasetConfig
from stillhouse.dataset.schema import CandidateShard
from stillhouse.dataset.select.select import Selection, select_rows
from stillhouse.errors import ConfigError, InputError

Row = dict[str, Any]
MakeRow = Callable[..., Row]
Select = Callable[..., Selection]
Write = Callable[..., list[CandidateShard]]

BUSY: dict[str, Any] = {
    "filters": {"duplicates": "near", "scores": {"a": [0.2, None]}, "turns": [None, 4]},
    "selection": {
        "rows_per_prompt": 2, "prefer": "score:a", "quotas": {"x": 3}, "target_rows": 6, "pass_rate": [None, 0.9],
    },
    "validation_fraction": 0.3,
}  # fmt: skip
"""A config under which every kind of choice is made."""


def decisions(selection: Selection, rows: list[Row]) -> dict[str, Any]:
    """All that is decided of each id."""
    return {
        row["id"]: (selection.reasons_of(n), selection.splits[n], str(selection.pass_rates[n]), selection.verified[n])
        for n, row in enumerate(rows)
        if not selection.repeated[n]
    }


SAMPLES = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from([True, True, True, False, None]),
        st.sampled_from([0.1, 0.3, 0.6, None]),
        st.integers(1, 5),
        st.integers(0, 30),
        st.sampled_from(["exact", "near"]),
    ),
    min_size=1,
    max_size=30,
)


def trajectories(samples: list[Any], make_row: MakeRow) -> list[Row]:
    rows = []
    for number, (prompt, verified, score, turns, repeats, kind) in enumerate(samples):
        row = make_row(f"p{prompt}", number % 3, id=f"r{number}", verified=verified, turns=turns, tag="xyz"[prompt % 3])
        # A row repeats none, or one before it that repeats none.
        standing = rows[repeats] if repeats < number else None
        is_repeat = standing is not None and standing["duplicate_of"] is None
        row |= {
            "scores": f'{{"a": {"null" if score is None else score}}}',
            "prompt_cluster": f"p{prompt - prompt % 2}",
            "duplicate_of": standing["id"] if standing and is_repeat else None,
            "duplicate_kind": kind if is_repeat else None,
        }
        rows.append(row)
    # One row that is always kept, and one of every tag, so that no choice of samples is an error.
    anchors = [make_row(f"anchor{tag}", tag=tag, scores='{"a": 1}', verified=None) for tag in "xyz"]
    return rows + [{**row, "prompt_cluster": row["prompt_id"], "duplicate_of": None} for row in anchors]


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(samples=SAMPLES, cuts=st.lists(st.integers(0, 33), max_size=4), shuffle=st.randoms(use_true_random=False))
def test_decisions_depend_on_neither_shards_nor_order(
    samples: list[Any], cuts: list[int], shuffle: Any, make_row: MakeRow, select: Select
) -> None:
    rows = trajectories(samples, make_row)
    expected = decisions(select(rows, **BUSY), rows)
    assert decisions(select(rows, **BUSY), rows) == expected
    shuffled = list(rows)
    shuffle.shuffle(shuffled)
    assert (
        decisions(select(shuffled, cuts=sorted(cut for cut in cuts if cut <= len(rows)), **BUSY), shuffled) == expected
    )


def test_a_row_whose_id_came_before_is_repeated_and_counted_nowhere(make_row: MakeRow, select: Select) -> None:
    rows = [make_row("p", 0), make_row("p", 1, verified=False), make_row("p", 0), make_row("p", 1, verified=False)]
    selection = select(rows, cuts=[2], selection={"target_rows": 4})
    assert selection.repeated.tolist() == [False, False, True, True]
    assert selection.splits.tolist() == [0, -1, -1, -1]
    assert [selection.reasons_of(n) for n in range(4)] == [[], ["wrong"], [], []]
    assert (selection.splits >= 0).sum() == 1


def test_the_judge_decides_what_is_verified_where_it_is_the_verifier(make_row: MakeRow, select: Select) -> None:
    verdicts = ['{"verdict": true}', '{"verdict": false}', '{"verdict": null}', None]
    rows = [make_row("p", n, verifier="judge", verified=None, judge=text) for n, text in enumerate(verdicts)]
    rows.append(make_row("p", 4, verifier="exact", judge='{"verdict": false}'))
    selection = select(rows, filters={"keep_unverified": False})
    assert selection.verified.tolist() == [1, 0, -1, -1, 1]
    assert [selection.reasons_of(n) for n in range(5)] == [[], ["wrong"], ["unverified"], ["unverified"], []]
    assert selection.pass_rates.tolist() == pytest.approx([2 / 3] * 5)


def test_nothing_kept_is_an_error_with_the_funnel_and_what_to_loosen(make_row: MakeRow, select: Select) -> None:
    rows = [make_row(f"p{n}", verified=False) for n in range(3)]
    with pytest.raises(InputError) as caught:
        select([*rows, rows[0]], selection={"prefer": "score:none has it"})
    text = str(caught.value)
    assert text.startswith("no trajectory of 4 is kept; expected at least one. Left after each step:\n")
    steps = text.split("Left after each step:\n")[1].split("Reasons")[0]
    assert steps == "         4  rollouts\n         3  distinct\n         0  not wrong\n"
    assert "Reasons: wrong 3\n" in text
    assert "dataset.filters.drop_wrong" in text


def test_nothing_to_train_on_is_an_error_even_if_rows_are_kept(make_row: MakeRow, select: Select) -> None:
    with pytest.raises(InputError, match="all 1 kept rows"):
        select([make_row("p")], validation_fraction=0.999999)


@pytest.mark.parametrize("rows", [0, None])
def test_no_trajectory_at_all_is_an_error(rows: int | None, write_shards: Write) -> None:
    shards = [] if rows is None else write_shards([])
    with pytest.raises(InputError, match="no trajectory"):
        select_rows(shards, DatasetConfig(), max_tokens=None)


@pytest.mark.parametrize(
    "config",
    [
        {"selection": {"prefer": "score:rewrad"}},
        {"filters": {"scores": {"rewrad": [None, 0.5]}}},
    ],
)
def test_an_unknown_score_is_named_with_those_seen(config: dict[str, Any], make_row: MakeRow, select: Select) -> None:
    rows = [make_row("p", scores='{"reward": 1}', judge='{"scores": {"judge/tone": 1}}'), make_row("q")]
    with pytest.raises(ConfigError, match=r"'rewrad'.*'judge/tone', 'reward'"):
        select(rows, **config)


def test_a_side_file_of_other_rows_is_named(make_row: MakeRow, write_shards: Write) -> None:
    (shard,) = write_shards([make_row("p", student_nll=1.0), make_row("q", student_nll=1.0)])
    assert shard.difficulty is not None
    pq.write_table(pq.read_table(shard.difficulty).slice(1), shard.difficulty)
    with pytest.raises(InputError, match=r"difficulty\.parquet.* 1 .*2 .*candidates\.parquet"):
        select_rows([shard], DatasetConfig(), max_tokens=None)


def test_a_file_without_a_column_that_decides_is_named(make_row: MakeRow, write_shards: Write) -> None:
    (shard,) = write_shards([make_row("p")])
    pq.write_table(pq.read_table(shard.candidates).drop_columns(["has_answer", "turns"]), shard.candidates)
    with pytest.raises(InputError, match=r"candidates\.parquet.* has_answer, turns"):
        select_rows([shard], DatasetConfig(), max_tokens=None)


def test_large_shards_keep_step_with_their_side_files(tmp_path: Path, make_row: MakeRow, write_shards: Write) -> None:
    (shard,) = write_shards([make_row("p", student_nll=0.0)])
    assert shard.difficulty is not None
    size = 70_000
    candidates = pq.read_table(shard.candidates)
    names = pa.array([str(n) for n in range(size)])
    many = pa.concat_tables([candidates] * size).combine_chunks()
    many = many.set_column(0, "id", names).set_column(1, "prompt_id", names)
    pq.write_table(many, tmp_path / "candidates.parquet", row_group_size=9_999)
    nll = np.where(np.arange(size) == size - 2, 5.0, 0.0)
    difficulty = pa.table({"student_nll": nll, "student_pass_rate": pa.nulls(size, pa.float64())})
    pq.write_table(difficulty, tmp_path / "difficulty.parquet", row_group_size=30_000)
    shard = CandidateShard(
        tmp_path / "candidates.parquet", shard.signatures, difficulty=tmp_path / "difficulty.parquet"
    )
    config = DatasetConfig.model_validate({"filters": {"student_nll": [None, 1.0]}})
    assert np.flatnonzero(select_rows([shard], config, max_tokens=None).reasons).tolist() == [size - 2]
