"""How much the sampled text repeats itself, in words."""

import re
from typing import Final

from stillhouse.labels.declare import Column, Kind, Label, Limit, Measure, Reason, above, number

NGRAM_WORDS: Final = 5
"""The shortest whose duplicates Gopher counts."""
# Thai, Lao, kana, Han: scripts without spaces, in which each character counts as a word.
_UNSPACED: Final = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD: Final = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def repetition(text: str) -> float | None:
    """Return the share of n-grams of `NGRAM_WORDS` words that repeat an earlier one; None for fewer words than that.

    The duplicate n-gram fraction of Gopher (Rae et al. 2021, arXiv 2112.11446, appendix A.1.1, table A1), in n-grams
    instead of characters, without case and punctuation. Gopher drops web pages from 0.15 on.
    """
    words = _WORD.findall(text.lower())
    num_ngrams = len(words) - NGRAM_WORDS + 1
    if num_ngrams < 1:
        return None
    distinct = set(zip(*(words[first : first + num_ngrams] for first in range(NGRAM_WORDS)), strict=True))
    return 1 - len(distinct) / num_ngrams


REPETITION: Final = Label(
    place=50,
    columns=(
        Column("repetition", Kind.REAL, "share of the sampled word n-grams that came before; null for text too short",
               Measure("Repeated n-grams"), lambda texts: repetition(texts.sampled_text)),
    ),
    filters=(
        above("repetition", Reason("repetitive", "the sampled text repeats itself too much"), "not repeating itself",
            Limit("max_repetition", number(float, ge=0.0, le=1.0),
            "Largest share of sampled text in word n-grams that came before. Set it above what the dataset's report "
            "shows for rows you like: loops stand far apart."), 110),
    ),
)  # fmt: skip
