"""The labels `language` and `language_confidence`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.labelling.prose import without_code

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
