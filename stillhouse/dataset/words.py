"""Words of texts and 64-bit hashes of n-grams, for near-duplicates and contamination.

Scripts that put no spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) count each character as a word.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

Hashes = npt.NDArray[np.uint64]

_SIGNS: Final = r"!-/:-@\[-`{-~\u00a1-\u00bf\u00d7\u00f7\u2010-\u2027\u2030-\u205e\u2190-\u2bff\u3001-\u303f"
"""Punctuation and symbols: ASCII, Latin-1, general, mathematical and CJK."""
_UNSPACED: Final = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Words end only at spaces and signs, so that combining vowels (Devanagari, Arabic) stay in them.
_WORDS: Final = re.compile(rf"[^\s{_SIGNS}{_UNSPACED}]+|[{_UNSPACED}]")
_TOKENS: Final = re.compile(rf"[^\s{_SIGNS}{_UNSPACED}]+|[{_SIGNS}{_UNSPACED}]")
MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, made odd (Knuth, The Art of Computer Programming, vol. 3, section 6.4)."""


def normalised(text: str) -> str:
    """Return `text` under NFKC, casefolded, with single spaces. Punctuation stays: `3 - 2` is not `3 + 2`."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words(text: str) -> list[str]:
    """Return the words of a normalised text, without punctuation and symbols."""
    return _WORDS.findall(text)


def words_and_signs(text: str) -> list[str]:
    """Return the words of a normalised text; each punctuation mark or symbol is a word."""
    return _TOKENS.findall(text)


def word_hashes(words: Iterable[str]) -> Hashes:
    """Return XXH3 of each word: equal in every process and on every machine."""
    return np.fromiter(map(xxh3_64_intdigest, words), np.uint64)


def ngram_hashes(words: Hashes, length: int) -> Hashes:
    """Return the hash of each n-gram, shape `[max(0, num_words - length + 1)]`: a polynomial of words modulo 2^64."""
    num_ngrams = max(0, len(words) - length + 1)
    hashes = words[:num_ngrams].copy()
    for offset in range(1, length):
        hashes *= MULTIPLIER
        hashes += words[offset : offset + num_ngrams]
    return hashes
