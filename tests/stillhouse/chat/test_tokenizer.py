import copy
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.tokenizer import decode_all, encode, encode_placed

Family = Callable[[str], PreTrainedTokenizerBase]
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\u2581"), min_size=1, max_size=12) | st.just(
    " the an\n\n 10"
)


@pytest.mark.parametrize("name", ["qwen3", "gemma"])
@settings(max_examples=50)
@given(text=TEXTS)
def test_tokens_begin_where_their_text_does(family: Family, name: str, text: str) -> None:
    (placed,) = encode_placed(family(name), [text])
    assert placed.ids == encode(family(name), text)
    for start, stop in zip(placed.starts, [*placed.starts[1:], len(text)], strict=True):
        if start < stop:
            # Tokens that share a character share its place, and the last of them ends it.
            ids = [token for token, place in zip(*placed, strict=True) if place == start]
            assert decode_all(family(name), [ids]) == [text[start:stop]]


def test_a_space_belongs_to_the_token_that_writes_it_though_its_offset_leaves_it_out(family: Family) -> None:
    tokenizer = copy.deepcopy(family("qwen3"))
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    assert tokenizer.backend_tokenizer.encode("x y").offsets == [(0, 1), (2, 2), (2, 3)]
    assert encode_placed(tokenizer, [" a an"])[0].starts == [0, 2, 3]


def test_a_slow_tokenizer_encodes_and_does_not_tell_places() -> None:
    tokenizer = ByT5Tokenizer()
    ids = encode(tokenizer, "an\u00e9")
    assert decode_all(tokenizer, [ids]) == ["an\u00e9"]
    with pytest.raises(TemplateError, match="ByT5Tokenizer"):
        encode_placed(tokenizer, ["an"])
