import numpy as np

from stillhouse.chat.next_turn import TurnEnds
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.training.on_policy.teachers.ends import EndExchange
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest

EXCHANGE = EndExchange(TurnEnds(0, 0), TurnEnds(2, 2))


def test_two_tokens_change_places_and_no_other_is_touched() -> None:
    assert EXCHANGE.ids([0, 1, 2, 3, 0]) == [2, 1, 0, 3, 2]
    assert EXCHANGE.changes
    assert EXCHANGE.fits_calls
    assert not EndExchange(TurnEnds(2, 2), TurnEnds(2, 2)).changes
    assert not EndExchange(TurnEnds(2, 2), TurnEnds(2, 3)).fits_calls
    assert EndExchange(TurnEnds(2, 3), TurnEnds(2, 3)).fits_calls


def test_the_teachers_best_tokens_become_the_students_and_the_scores_of_the_sampled_ones_stay() -> None:
    top = TopLogprobs.rounded(np.array([[2, 5], [7, 0], [0, 2]]), np.log([[0.5, 0.25], [0.5, 0.25], [0.5, 0.25]]))
    scored = EXCHANGE.scores(ScoreRequest([1, 0], [False, True], "p"), SequenceScores([-1.0, -2.0, -3.0], top))
    assert scored.logprobs == [-1.0, -2.0, -3.0]
    assert scored.top is not None
    assert scored.top.ids_NK.tolist() == [[0, 5], [7, 2], [2, 0]]
    assert top.ids_NK.tolist() == [[2, 5], [7, 0], [0, 2]]
    assert scored.top.logprobs_NK is top.logprobs_NK
    assert EXCHANGE.scores(ScoreRequest([1, 0], [False, True], "p"), SequenceScores([-1.0])) == SequenceScores([-1.0])
