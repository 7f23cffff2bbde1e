"""Text to token ids and back, without the wrapper of transformers where there is a fast tokenizer behind it."""

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from stillhouse.chat.text import TemplateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Placed(NamedTuple):
    """Tokens with their places in the text; both lists have one entry per token."""

    ids: list[int]
    starts: list[int]
    """Index of the token's first character; tokens that share a character share its index."""


def encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Token ids of a text that holds its special tokens itself."""
    return encode_all(tokenizer, [text])[0]


def encode_all(tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> list[list[int]]:
    """`encode` of many texts."""
    if not tokenizer.is_fast:
        return [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]
    # Without the wrapper, which costs more than the tokens themselves: masks, offsets and a copy of each.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def encode_placed(tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> list[Placed]:
    """`encode_all` with the places of the tokens.

    Raises:
        TemplateError: If the tokenizer is a slow one, which does not know them.
    """
    if not tokenizer.is_fast:
        raise TemplateError(
            f"{type(tokenizer).__name__} does not tell where its tokens stand in a text; expected a fast tokenizer"
        )
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return [
        Placed(encoding.ids, _starts(encoding.offsets))
        for encoding in backend.encode_batch(texts, add_special_tokens=False)
    ]


def decode_all(tokenizer: "PreTrainedTokenizerBase", sequences: list[list[int]]) -> list[str]:
    """Texts of many token sequences, special tokens included."""
    if not tokenizer.is_fast:
        return [tokenizer.decode(ids) for ids in sequences]
    return tokenizer.backend_tokenizer.decode_batch(sequences, skip_special_tokens=False)


def special_ids(tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Ids of the special tokens."""
    return frozenset(token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special)


def end_of_turn(ids: Sequence[int], special: Set[int], index: int) -> int:
    """Place of the last special token in `ids`, which are those of assistant message `index`.

    Raises:
        TemplateError: If there is none.
    """
    for place in range(len(ids) - 1, -1, -1):
        if ids[place] in special:
            return place
    raise TemplateError(f"the chat template closes assistant message {index} with no special end-of-turn token")


def _starts(offsets: list[tuple[int, int]]) -> list[int]:
    """Where tokens start, the spaces before them included, which byte-level tokenizers may leave out of offsets."""
    starts: list[int] = []
    end = 0
    for start, stop in offsets:
        starts.append(min(start, end))
        end = max(end, stop)
    return starts
