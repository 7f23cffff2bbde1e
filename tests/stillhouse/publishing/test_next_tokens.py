import numpy as np
import pytest

from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.publishing.next_tokens import compare_next_tokens


def _scores(rows: list[dict[int, float]]) -> list[SequenceScores]:
    ids = np.array([list(row) for row in rows])
    logprobs = np.log(np.array([list(row.values()) for row in rows]))
    return [SequenceScores([0.0] * len(rows), TopLogprobs.rounded(ids, logprobs))]


def test_the_divergence_is_that_of_the_shared_tokens_and_all_others_as_one() -> None:
    student, form = _scores([{5: 0.6, 7: 0.3}]), _scores([{5: 0.5, 9: 0.2}])
    expected = 0.6 * np.log(0.6 / 0.5) + 0.4 * np.log(0.4 / 0.5)
    found = compare_next_tokens(student, form)
    assert found.kl == pytest.approx(expected, abs=1e-3)
    assert (found.same_best, found.num_tokens) == (1.0, 1)


def test_equal_distributions_do_not_differ_in_whatever_order_they_are_written() -> None:
    found = compare_next_tokens(
        _scores([{5: 0.6, 7: 0.3}, {1: 0.9, 2: 0.1}]), _scores([{7: 0.3, 5: 0.6}, {1: 0.9, 2: 0.1}])
    )
    assert found.kl == pytest.approx(0.0, abs=1e-6)
    assert found.same_best == 0.5
