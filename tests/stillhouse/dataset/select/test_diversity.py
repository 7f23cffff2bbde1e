from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from stillhouse.dataset.select import diversity
from stillhouse.dataset.select.diversity import farthest_first
from stillhouse.dataset.select.select import Selection
from stillhouse.errors import InputError

Row = dict[str, Any]
MakeRow = Callable[..., Row]
Select = Callable[..., Selection]
EMBEDS = {"base_url": "http://127.0.0.1:1/v1"}


def unit_vectors(size: int, seed: int, numbers: int = 8) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(size, numbers)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def one_by_one(vectors: np.ndarray, known: np.ndarray, most: int) -> list[int]:
    """The same order, with every distance computed anew for every step."""
    taken = [int(known.argmax())]
    while len(taken) < min(most, known.sum()):
        nearest = (1 - vectors @ vectors[taken].T).min(axis=1)
        nearest[~known], nearest[taken] = -np.inf, -np.inf
        taken.append(int(nearest.argmax()))
    return taken


@pytest.mark.parametrize(("size", "seed"), [(1, 0), (2, 1), (120, 2), (diversity._BLOCK + 1, 3), (2500, 4)])
def test_order_is_that_of_farthest_points_taken_one_by_one(size: int, seed: int) -> None:
    vectors = unit_vectors(size, seed)
    known = np.random.default_rng(seed).random(size) < 0.9
    known[-1] = True
    assert list(islice(farthest_first(vectors, known), 150)) == one_by_one(vectors, known, 150)


def test_every_known_place_comes_once_even_if_all_are_the_same() -> None:
    vectors = np.repeat(unit_vectors(1, 0), 50, axis=0)
    known = np.arange(50) % 3 != 0
    assert sorted(farthest_first(vectors, known)) == np.flatnonzero(known).tolist()


def test_one_of_each_direction_is_kept_before_any_other(make_row: MakeRow, select: Select) -> None:
    directions = np.eye(4)
    rows = [make_row(f"p{n}", embedding=(directions[n % 4] * (n + 1)).tolist()) for n in range(20)]
    selection = select(rows, embeddings=EMBEDS, selection={"max_diverse_rows": 4})
    assert {n % 4 for n in np.flatnonzero(selection.splits >= 0)} == {0, 1, 2, 3}
    assert {tuple(selection.reasons_of(n)) for n in range(20)} == {(), ("not_diverse",)}


def test_rows_of_a_prompt_stay_together_up_to_the_number_asked_for(make_row: MakeRow, select: Select) -> None:
    vectors = unit_vectors(6, 0).tolist()
    rows = [make_row(f"p{prompt}", n, embedding=vectors[prompt]) for prompt in range(6) for n in range(4)]
    selection = select(rows, embeddings=EMBEDS, selection={"max_diverse_rows": 10})
    kept = (selection.splits >= 0).reshape(6, 4)
    assert sorted(kept.sum(axis=1)) == [0, 0, 0, 2, 4, 4]
    assert kept[kept.sum(axis=1) == 2].tolist() == [[True, True, False, False]]


def test_prompts_without_an_embedding_come_last(make_row: MakeRow, select: Select) -> None:
    vectors = [None, [0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    rows = [make_row(f"p{n}", embedding=vector) for n, vector in enumerate(vectors)]
    for most, expected in ((2, [2, 3]), (4, [0, 1, 2, 3])):
        selection = select(rows, embeddings=EMBEDS, selection={"max_diverse_rows": most})
        assert np.flatnonzero(selection.splits >= 0).tolist() == expected
    assert select(rows, embeddings=EMBEDS, selection={"max_diverse_rows": 3}).kept == 3


def test_choice_does_not_depend_on_shards_or_order(make_row: MakeRow, select: Select) -> None:
    vectors = unit_vectors(40, 5).tolist()
    rows = [make_row(f"p{n}", embedding=vector) for n, vector in enumerate(vectors)]
    config = {"embeddings": EMBEDS, "selection": {"max_diverse_rows": 12}}
    order = np.random.default_rng(0).permutation(40)
    kept = select(rows, **config).splits >= 0
    again = select([rows[n] for n in order], cuts=[3, 17, 17], **config).splits >= 0
    assert kept.sum() == 12
    np.testing.assert_array_equal(kept[order], again)


def test_embeddings_that_are_not_there_or_differ_in_size_are_errors(make_row: MakeRow, select: Select) -> None:
    config = {"embeddings": EMBEDS, "selection": {"max_diverse_rows": 1}}
    with pytest.raises(InputError, match="none of 2 prompts has an embedding"):
        select([make_row("p"), make_row("q")], **config)
    with pytest.raises(InputError, match="2 numbers in one file and 3 in another"):
        select([make_row("p", embedding=[1.0, 0.0]), make_row("q", embedding=[1.0, 0.0, 0.0])], cuts=[1], **config)
