"""Log-probabilities of an answer's tokens, as OpenAI writes them."""

import math
import re
import string
from collections.abc import Iterable
from typing import Any, Final

MAX_TOP_LOGPROBS: Final = 20
_SHARE: Final = 0.75
"""Share of the sampled token, and of each alternative in turn in what is left."""
_WORDS: Final = re.compile(r"\s*\S+|\s+")


def words_of(content: str) -> list[bytes]:
    """Return a text in tokens: a word each, with the space before it."""
    return [word.encode() for word in _WORDS.findall(content)]


def token_logprobs(tokens: Iterable[bytes], top_k: int) -> dict[str, Any]:
    """Return `logprobs` of a choice with these tokens; the alternatives of each are letters."""
    return {"content": [_entry(token, top_k) for token in tokens], "refusal": None}


def _entry(token: bytes, top_k: int) -> dict[str, Any]:
    letters = [letter.encode() for letter in string.ascii_letters if letter.encode() != token]
    ranked = [
        _token(spelling, math.log(_SHARE) + rank * math.log(1 - _SHARE))
        for rank, spelling in enumerate([token, *letters[: max(0, top_k - 1)]])
    ]
    return {**ranked[0], "top_logprobs": ranked[:top_k]}


def _token(spelling: bytes, logprob: float) -> dict[str, Any]:
    return {"token": spelling.decode(errors="replace"), "logprob": logprob, "bytes": list(spelling)}
