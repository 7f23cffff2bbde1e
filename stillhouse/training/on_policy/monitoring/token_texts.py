"""What each token of a sequence writes."""

from collections.abc import Sequence
from typing import Final

from transformers import PreTrainedTokenizerBase

_UNFINISHED: Final = "\ufffd"
_MOST_BYTES: Final = 4


def token_texts(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    """The text of each token; joined they are the text of the sequence, special tokens included.

    A character of several tokens belongs to the last of them, and the others write nothing. Each token is decoded
    behind the one before it, since many vocabularies write a space between two tokens and none before the first.
    """
    texts: list[str] = []
    before = done = 0
    for end in range(1, len(token_ids) + 1):
        known = tokenizer.decode(token_ids[before:done])
        text = tokenizer.decode(token_ids[before:end])
        # A sequence of bytes that no longer one can complete is wrong, and shown as such.
        if text.endswith(_UNFINISHED) and end - done < _MOST_BYTES and end < len(token_ids):
            texts.append("")
            continue
        texts.append(text[len(known) :])
        before, done = done, end
    return texts
