import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.errors import TrainingError
from stillhouse.training.on_policy.teachers.vocabulary import check_spellings, check_vocabularies, spelling_sample


def test_a_teacher_of_another_vocabulary_is_refused_with_the_tokens_that_differ(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    teacher = load_tokenizer("embedded:teacher")
    check_vocabularies("embedded:teacher", teacher, tokenizer)
    teacher.add_tokens(["<extra>"])
    with pytest.raises(TrainingError, match=r"1 tokens differ \('<extra>' is None for the student.*alignment.*bytes"):
        check_vocabularies("embedded:teacher", teacher, tokenizer)


def test_spellings_are_tried_all_over_the_vocabulary(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = spelling_sample(tokenizer, 64)
    assert len(ids) == 64
    assert max(ids) > 0.9 * len(tokenizer)
    spellings: list[str | None] = [tokenizer.decode([token]) for token in ids]
    check_spellings("far", ids, spellings, tokenizer)
    # Not all servers write the space before a word, or know how to write a piece of a character.
    check_spellings("far", ids, [text.strip() if text else None for text in spellings], tokenizer)
    check_spellings("far", ids, [None] * 64, tokenizer)
    with pytest.raises(TrainingError, match=r"teacher 'far' does not share the student's vocabulary: of 64 tokens"):
        check_spellings("far", ids, spellings[1:] + spellings[:1], tokenizer)
