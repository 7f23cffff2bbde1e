"""Language of the answer."""

import re
from functools import cache, lru_cache
from typing import Annotated, Any, Final

import orjson
from pydantic import Field

from stillhouse.labels.declare import Column, Filter, Kind, Kinds, Label, Limit, Reason
from stillhouse.labels.prose import without_code

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


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@lru_cache(maxsize=1)
def identified(answer: str | None) -> tuple[str | None, float | None]:
    """Return the ISO 639-1 code of the answer's language and its probability, by py3langid's built-in model.

    The probability is normalised over all of the model's languages. None without prose (numbers, formulas, code, JSON),
    if the text fits several languages, or if its language has no ISO 639-1 code. Code outside of fences and backticks
    counts as prose.
    """
    prose = "" if answer is None or _is_json(answer) else without_code(answer).text
    prose = " ".join(_NO_PROSE.sub(" ", prose).split())[:MAX_CHARS]
    if len("".join(_LETTERS.findall(prose)).encode(errors="replace")) < MIN_LETTER_BYTES:
        return None, None
    label, confidence = _identifier().classify(prose)
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


LANGUAGE: Final = Label(
    on_request="language",
    place=30,
    columns=(
        Column("language", Kind.TEXT, "language of the answer as ISO 639-1 code; null if not identified",
               Kinds("Languages", missing="(not identified)"), lambda texts: identified(texts.answer)[0]),
        Column("language_confidence", Kind.REAL, "probability of it; null likewise",
               compute=lambda texts: identified(texts.answer)[1]),
    ),
    filters=(
        Filter(Reason("language", "the answer's language is not an allowed one"), "in an allowed language",
            ("language",), lambda rows, allowed: rows["language"].notna() & ~rows["language"].isin(allowed),
            Limit("languages", tuple[Annotated[str, Field(pattern=r"^[a-z]{2}$")], ...],
            "ISO 639-1 codes of the languages an answer may have, such as `de`; empty allows any. Short answers are "
            "often taken for another language: look at what is dropped.", off=()), 100),
    ),
)  # fmt: skip
