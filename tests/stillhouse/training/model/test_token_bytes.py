from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.training.model.token_bytes import token_bytes

SPACE = "\u2581"


def sentencepiece() -> Tokenizer:
    """Letters and bytes, the space as a letter of its own."""
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), *"abth", SPACE, SPACE + "a", "\u00e9"]
    backend = Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(pieces)}, [(SPACE, "a")], byte_fallback=True)
    )
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def words() -> Tokenizer:
    """Whole words, which decode alone to themselves."""
    backend = Tokenizer(models.WordLevel({"caf\u00e9": 0, "tea": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


@pytest.fixture(scope="module", params=["embedded", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    if request.param == "embedded":
        made: Any = load_tokenizer("embedded:student")
    else:
        backend = sentencepiece()
        backend.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
        made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    made.add_tokens(["<\u00e9>"])
    return made


@settings(max_examples=100)
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters=SPACE)) | st.just("<\u00e9>"), max_size=4)
)
def test_bytes_of_tokens_add_up_to_those_of_their_text(tokenizer, texts: list[str]):
    sizes = token_bytes(tokenizer)
    text = " ".join(texts)
    ids = tokenizer(text + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    assert sum(sizes[token] for token in ids) == len(text.encode())
    assert sizes[tokenizer.eos_token_id] == 0


def test_tokens_of_another_kind_are_decoded():
    made: Any = PreTrainedTokenizerFast(tokenizer_object=words())
    assert token_bytes(made) == [5, 3, 1]
