"""Lengths, and how much a text repeats itself."""

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stillhouse.dataset.labelling.subject import Subject

NGRAM_WORDS: Final = 5
"""Words of the n-grams of `repetition`: the shortest of those whose duplicates Gopher counts."""
MIN_COMPRESSED_BYTES: Final = 256
"""Length from which `compression_ratio` means something. English prose comes to 1.22 at 64 bytes, a loop of 40
characters to 0.92: gzip's header of 18 bytes outweighs the rest. At 256 bytes they come to 0.77 and 0.23."""

_GZIP_WINDOW: Final = 31
# Scripts without spaces between words: each character counts as one. Thai, Lao, kana, Han.
_UNSPACED: Final = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD: Final = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def text_labels(subjects: Sequence[Subject]) -> Mapping[str, Sequence[Any]]:
    """The columns has_answer, prompt_chars, answer_chars, sampled_chars, repetition and compression_ratio."""
    return {
        "has_answer": [one.answer is not None for one in subjects],
        "prompt_chars": [len(one.prompt_text) for one in subjects],
        "answer_chars": [None if one.answer is None else len(one.answer) for one in subjects],
        "sampled_chars": [len(one.sampled_text) for one in subjects],
        "repetition": [repetition(one.sampled_text) for one in subjects],
        "compression_ratio": [compression_ratio(one.sampled_text) for one in subjects],
    }


def repetition(text: str) -> float | None:
    """Share of the n-grams of `NGRAM_WORDS` words that came before in the text; None for fewer words than that.

    The duplicate n-gram fraction of Gopher (Rae et al. 2021, arXiv 2112.11446, appendix A.1.1, table A1), counted in
    n-grams, not in characters; case and punctuation do not count. Gopher drops web pages from 0.15 on. Linear in the
    length of the text.
    """
    words = _WORD.findall(text.lower())
    num_ngrams = len(words) - NGRAM_WORDS + 1
    if num_ngrams < 1:
        return None
    distinct = set(zip(*(words[first : first + num_ngrams] for first in range(NGRAM_WORDS)), strict=True))
    return 1 - len(distinct) / num_ngrams


def compression_ratio(text: str) -> float | None:
    """Bytes of the text after gzip over its bytes in UTF-8; None below `MIN_COMPRESSED_BYTES`.

    Sees what `repetition` cannot: loops without spaces, of symbols, or shorter than a word. The inverse of Whisper's
    `compression_ratio` (Radford et al. 2022, arXiv 2212.04356, section 4.5), which calls text above 2.4 a loop: 0.42
    here.
    """
    content = text.encode(errors="replace")
    if len(content) < MIN_COMPRESSED_BYTES:
        return None
    return len(zlib.compress(content, wbits=_GZIP_WINDOW)) / len(content)
