import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.training.on_policy.monitoring.shown_tokens import shown_tokens, token_texts
from stillhouse.training.on_policy.scored import ScoredSample


@pytest.mark.parametrize("text", ["The answer is 42.<|im_end|>", " two  spaces\n\n\tand a tab", "naïve 日本語 🙂 ok"])
def test_texts_of_tokens_join_up(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = token_texts(tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer.decode(ids) == text


def test_a_character_of_several_tokens_belongs_to_the_last(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer.encode("🙂!", add_special_tokens=False)
    assert token_texts(tokenizer, ids) == ["", "", "", "🙂", "!"]


def test_bytes_that_are_no_text_are_shown_as_such(tokenizer: PreTrainedTokenizerBase) -> None:
    (smile, *_), (letter,) = (tokenizer.encode(text, add_special_tokens=False) for text in ("🙂", "a"))
    texts = token_texts(tokenizer, [smile, letter, smile])
    assert "".join(texts) == tokenizer.decode([smile, letter, smile]) == "\ufffda\ufffd"
    assert texts[1] == "\ufffda"


@pytest.mark.parametrize("has_teacher", [True, False])
def test_a_sampled_token_has_its_figures_and_one_that_was_read_has_none(
    tokenizer: PreTrainedTokenizerBase, has_teacher: bool
) -> None:
    ids = tokenizer.encode("abcd", add_special_tokens=False)
    teacher = [0.0, -1.5, 0.0, -0.5] if has_teacher else None
    mask = [False, True, False, True]
    sample = ScoredSample(ids, mask, "p", sampling_logprobs=[0.0, -1.0, 0.0, -1.0], teacher_logprobs=teacher)
    first, read, last = shown_tokens(sample, [0.0, 0.25, 0.0, -0.25], tokenizer)
    compared = {"teacher": -1.5, "kl": 0.5} if has_teacher else {}
    assert first == {"text": "b", "id": ids[1], "advantage": 0.25, "student": -1.0} | compared
    assert (read, last["advantage"]) == ({"text": "c"}, -0.25)
