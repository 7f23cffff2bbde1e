import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.training.on_policy.monitoring.shown_tokens import token_texts


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
