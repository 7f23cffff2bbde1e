"""Lengths of texts, how much they repeat themselves, and their prose without code and reasoning.

Code blocks follow the fences of CommonMark 0.31, section 4.5, at any indentation, since models indent them in lists.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

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


_FENCE: Final = re.compile(r"[ \t>]*(?:[-*+] +|\d+[.)] +)?(`{3,}|~{3,})([^\n]*)")
_CODE_SPAN: Final = re.compile(r"(?<!`)(`{1,2})(?!`)[^`\n]+\1(?!`)")
_THOUGHTS: Final = re.compile(r"\s*<(think|thinking)>.*?</\1>\s*", re.DOTALL)


class Prose(NamedTuple):
    """A text whose code is blank; every character stands where it stood."""

    text: str
    open_line: int | None
    """Line, from 1, of a code fence that is never closed; what follows it is not blank."""


def without_code(text: str) -> Prose:
    """`text` with spaces in place of fenced blocks and of code between backticks."""
    if "`" not in text and "~~~" not in text:
        return Prose(text, None)
    lines = text.split("\n")
    opened: tuple[str, int] | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        mark, rest = fence.groups()
        if opened is None:
            # "```x```" on one line is a code span.
            opened = None if "`" in rest else (mark, number)
        elif mark.startswith(opened[0]) and not rest.strip():
            for inside in range(opened[1], number + 1):
                lines[inside] = " " * len(lines[inside])
            opened = None
    spans_blank = _CODE_SPAN.sub(lambda span: " " * len(span[0]), "\n".join(lines))
    return Prose(spans_blank, None if opened is None else opened[1] + 1)


def without_thoughts(text: str) -> str:
    """`text` after the think tags that it begins with, where it does."""
    thoughts = _THOUGHTS.match(text)
    return text if thoughts is None else text[thoughts.end() :]
