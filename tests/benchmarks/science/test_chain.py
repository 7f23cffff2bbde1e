import random
import re

import pytest

from benchmarks.science.tasks.chain import DOUBTFUL, TABLES, WRONG_TABLES, Chain, ChainKind, distinct_chains


def test_every_operation_is_a_permutation_and_every_wrong_reading_another_digit() -> None:
    assert all(sorted(table) == list(range(10)) for table in TABLES.values())
    assert list(WRONG_TABLES) == list(DOUBTFUL)
    for letter, wrong in WRONG_TABLES.items():
        assert all(right != misread for right, misread in zip(TABLES[letter], wrong, strict=True))


def test_results_build_on_each_other() -> None:
    first = TABLES["c"][7]
    assert Chain(7, "ca").results() == [first, TABLES["a"][first]]


@pytest.mark.parametrize(("wrong_share", "expected"), [(0.0, 0.0), (0.4, 0.4), (1.0, 1.0)])
def test_doubtful_letters_alone_are_read_wrong_and_as_often_as_asked(wrong_share: float, expected: float) -> None:
    rng, doubtful, sure = random.Random(0), DOUBTFUL[0], "b"
    read = [Chain(3, doubtful + sure).misread(rng, wrong_share) for _ in range(2000)]
    assert sum(first == WRONG_TABLES[doubtful][3] for first, _ in read) / 2000 == pytest.approx(expected, abs=0.04)
    assert all(second == TABLES[sure][first] for first, second in read)


def test_an_answer_is_right_by_its_last_result_and_its_length() -> None:
    chain = Chain(7, "caf")
    *_, last = chain.results()
    pattern = chain.question().pattern
    assert re.search(pattern, f"00{last}")
    for wrong in (f"0{last}", f"000{last}", f"00{(last + 1) % 10}"):
        assert not re.search(pattern, wrong)


def test_chains_are_distinct() -> None:
    chains = distinct_chains(random.Random(0), 300, ChainKind(length=2))
    assert len(set(chains)) == len(chains) == 300
