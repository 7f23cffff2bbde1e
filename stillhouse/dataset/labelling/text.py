"""Lengths of texts, how much they repeat themselves, their language, and their prose without code and reasoning.

Code blocks follow the fences of CommonMark 0.31, section 4.5, at any indentation, since models indent them in lists.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from stillhouse.dataset.label_input import LabelInput

NGRAM_WORDS: Final = 5
"""Words of an n-gram of `repetition`: the shortest whose duplicates Gopher counts."""
MIN_COMPRESSED_BYTES: Final = 256
"""Minimum length for `compression_ratio`. At 64 bytes English prose comes to 1.22 and a loop of 40 characters to 0.92,
since gzip's header takes 18 bytes; at 256 bytes they come to 0.77 and 0.23."""

_FENCE: Final = re.compile(r"[ \t>]*(?:[-*+] +|\d+[.)] +)?(`{3,}|~{3,})([^\n]*)")
_CODE_SPAN: Final = re.compile(r"(?<!`)(`{1,2})(?!`)[^`\n]+\1(?!`)")
_GZIP_WINDOW: Final = 31
# Thai, Lao, kana, Han: scripts without spaces, in which each character counts as a word.
_UNSPACED: Final = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD: Final = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def text_labels(inputs: Sequence[LabelInput]) -> Mapping[str, Sequence[Any]]:
    """The columns has_answer, prompt_chars, answer_chars, sampled_chars, repetition and compression_ratio."""
    return {
        "has_answer": [item.answer is not None for item in inputs],
        "prompt_chars": [len(item.prompt_text) for item in inputs],
        "answer_chars": [None if item.answer is None else len(item.answer) for item in inputs],
        "sampled_chars": [len(item.sampled_text) for item in inputs],
        "repetition": [repetition(item.sampled_text) for item in inputs],
        "compression_ratio": [compression_ratio(item.sampled_text) for item in inputs],
    }


def repetition(text: str) -> float | None:
    """Share of n-grams of `NGRAM_WORDS` words that repeat an earlier one; None for fewer words than that.

    The duplicate n-gram fraction of Gopher (Rae et al. 2021, arXiv 2112.11446, appendix A.1.1, table A1), in n-grams
    instead of characters, without case and punctuation. Gopher drops web pages from 0.15 on.
    """
    words = _WORD.findall(text.lower())
    num_ngrams = len(words) - NGRAM_WORDS + 1
    if num_ngrams < 1:
        return None
    distinct = set(zip(*(words[first : first + num_ngrams] for first in range(NGRAM_WORDS)), strict=True))
    return 1 - len(distinct) / num_ngrams


def compression_ratio(text: str) -> float | None:
    """Bytes of the text after gzip over its bytes in UTF-8; None below `MIN_COMPRESSED_BYTES`.

    Detects what `repetition` cannot: loops without spaces, of symbols, or shorter than a word. The inverse of Whisper's
    `compression_ratio` (Radford et al. 2022, arXiv 2212.04356, section 4.5), whose limit of 2.4 is 0.42 here.
    """
    content = text.encode(errors="replace")
    if len(content) < MIN_COMPRESSED_BYTES:
        return None
    return len(zlib.compress(content, wbits=_GZIP_WINDOW)) / len(content)


class Prose(NamedTuple):
    """A text in which code is blanked, character for character."""

    text: str
    open_line: int | None
    """Line, from 1, of a code fence that is never closed; the text after it is not blanked."""


def without_code(text: str) -> Prose:
    """`text` with spaces in place of fenced blocks and code between backticks."""
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
            # "```x```" on one line is inline code.
            opened = None if "`" in rest else (mark, number)
        elif mark.startswith(opened[0]) and not rest.strip():
            for inside in range(opened[1], number + 1):
                lines[inside] = " " * len(lines[inside])
            opened = None
    spans_blank = _CODE_SPAN.sub(lambda span: " " * len(span[0]), "\n".join(lines))
    return Prose(spans_blank, None if opened is None else opened[1] + 1)


MIN_LETTER_BYTES: Final = 20
"""Minimum UTF-8 bytes of letters to identify: twenty Latin letters, ten Cyrillic ones, or seven Chinese characters. The
identifier reads bytes, and a character of a large script says more than a letter."""
MIN_CONFIDENCE: Final = 0.3
"""Minimum probability. Of 327 sentences of English guides with 20 to 300 letters, 5 of the 33 below it were taken for
another language, and none of those above."""
MAX_CHARS: Final = 500
"""Characters of prose that are read: time is linear in them, and no sentence of 80 letters was mistaken."""

_NO_PROSE: Final = re.compile(
    r"https?://\S+"
    r"|<[^<>\n]{1,200}>"
    r"|\$\$.{1,2000}?\$\$|\$[^$\n]{1,200}\$"
    r"|\\\(.{1,2000}?\\\)|\\\[.{1,2000}?\\\]|\\[a-zA-Z]+",
    re.DOTALL,
)
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_MACROLANGUAGES: Final = {"arz": "ar", "ary": "ar", "fuv": "ff", "sdh": "ku", "uzs": "uz", "wuu": "zh", "yue": "zh"}
"""Languages without an ISO 639-1 code, by the code of their ISO 639-3 macrolanguage."""


class LanguageLabels:
    """The columns language and language_confidence, by py3langid's built-in model, which is deterministic.

    The probability is normalised over all of the model's languages. Null without prose (numbers, formulas, code, JSON),
    if the text fits several languages, or if its language has no ISO 639-1 code. Code outside of fences and backticks
    counts as prose.
    """

    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    def __call__(self, inputs: Sequence[LabelInput]) -> Mapping[str, Sequence[Any]]:
        identified = [self._identify(item.answer) for item in inputs]
        return {
            "language": [code for code, _ in identified],
            "language_confidence": [confidence for _, confidence in identified],
        }

    def _identify(self, answer: str | None) -> tuple[str | None, float | None]:
        prose = "" if answer is None or _is_json(answer) else without_code(answer).text
        prose = " ".join(_NO_PROSE.sub(" ", prose).split())[:MAX_CHARS]
        if len("".join(_LETTERS.findall(prose)).encode(errors="replace")) < MIN_LETTER_BYTES:
            return None, None
        label, confidence = self._identifier.classify(prose)
        code = _MACROLANGUAGES.get(label, label)
        return (code, confidence) if len(code) == 2 and confidence >= MIN_CONFIDENCE else (None, None)


def _is_json(answer: str) -> bool:
    if answer.lstrip()[:1] not in ("{", "["):
        return False
    try:
        orjson.loads(answer)
    except orjson.JSONDecodeError:
        return False
    return True
