from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from stillhouse.chat.next_turn import TurnEnds
from stillhouse.chat.refs import resolve_model
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.errors import TrainingError
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.teachers.local import LocalTeacher
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.shared_ids import NO_ID, EndExchange, SharedIds
from stillhouse.types import Sample


def with_one_more_token(folder: Path) -> str:
    """A copy of the embedded teacher with a special token and its row behind all others."""
    source = resolve_model("embedded:teacher")
    tokenizer = load_tokenizer("embedded:teacher")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<tool>"]})
    model = AutoModelForCausalLM.from_pretrained(source)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_teacher_with_one_more_special_token_scores_as_it_does_without(
    student: Student, requests: list[Sample], load: Callable[..., TeacherRouter], tmp_path: Path
) -> None:
    scores = []
    for ref in ("embedded:teacher", with_one_more_token(tmp_path / "teacher")):
        teacher = load(student, teachers=[{"name": "near", "model": ref}]).by_name["near"]
        assert isinstance(teacher, LocalTeacher)
        scores.append([one.logprobs for one in teacher.start(requests).result()])
    for plain, more in zip(*scores, strict=True):
        # The new row takes some of the probability.
        assert more == pytest.approx(plain, abs=0.2)
    assert teacher._vocabulary == len(student.tokenizer)


@pytest.mark.parametrize(("mask", "reads_prompt"), [([False, True, False], False), ([False, False, True], True)])
def test_training_stops_where_a_token_that_the_teacher_lacks_is_sampled_or_read(
    tokenizer: PreTrainedTokenizerBase, mask: list[bool], reads_prompt: bool
) -> None:
    shared = SharedIds("near", 50, tokenizer, reads_prompt=reads_prompt)
    with pytest.raises(TrainingError, match=r"prompt p: .*\(50\).*'near'.*first 50"):
        shared.scores(Sample([1, 50, 2], mask, "p"), SequenceScores([-1.0]))


def test_a_teacher_that_renders_the_prompt_itself_reads_no_token_of_the_students(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    shared = SharedIds("near", 50, tokenizer, reads_prompt=False)
    scores = SequenceScores([-1.0])
    assert shared.scores(Sample([1, 50, 2], [False, False, True], "p"), scores) == scores


def test_the_teachers_own_tokens_are_no_ids_of_the_student(tokenizer: PreTrainedTokenizerBase) -> None:
    top = TopLogprobs.rounded(np.array([[3, 50], [51, 2]]), np.array([[-0.5, -1.0], [-0.1, -3.0]]))
    request = Sample([1, 3, 2], [False, True, True], "p")
    answer = SharedIds("near", 50, tokenizer).scores(request, SequenceScores([-0.5, -3.0], top))
    assert answer.top is not None
    assert answer.top.ids_NK.tolist() == [[3, NO_ID], [NO_ID, 2]]
    np.testing.assert_array_equal(answer.top.logprobs_NK, top.logprobs_NK)


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
    scored = EXCHANGE.scores(Sample([1, 0], [False, True], "p"), SequenceScores([-1.0, -2.0, -3.0], top))
    assert scored.logprobs == [-1.0, -2.0, -3.0]
    assert scored.top is not None
    assert scored.top.ids_NK.tolist() == [[0, 5], [7, 2], [2, 0]]
    assert top.ids_NK.tolist() == [[2, 5], [7, 0], [0, 2]]
    assert scored.top.logprobs_NK is top.logprobs_NK
    assert EXCHANGE.scores(Sample([1, 0], [False, True], "p"), SequenceScores([-1.0])) == SequenceScores([-1.0])
