"""Slips into another script, such as Chinese words in an English chain of thought."""

import re
from typing import Final

from stillhouse.labels.declare import Column, Kind, Label, Limit, Measure, Reason, above, number

MIN_LETTERS: Final = 20
_LATIN: Final = re.compile(r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff]+")
# Cyrillic; Hebrew; Arabic; Devanagari; Thai; Hangul; kana and Han, which Japanese mixes. Greek letters are formulas.
_OTHERS: Final = tuple(
    re.compile(f"[{letters}]+")
    for letters in ("\u0400-\u052f", "\u0590-\u05ff", "\u0600-\u06ff", "\u0900-\u097f", "\u0e00-\u0e7f",
                    "\u1100-\u11ff\uac00-\ud7af", "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff")
)  # fmt: skip


def mixed_scripts(text: str) -> float | None:
    """Return the share of letters in other scripts than the commonest; None below `MIN_LETTERS` letters.

    Latin letters are foreign to no text, since names, code and formulas are written in them.
    """
    latin, *others = (sum(map(len, letters.findall(text))) for letters in (_LATIN, *_OTHERS))
    num_letters = latin + sum(others)
    return (sum(others) - max(others) * (max(others) > latin)) / num_letters if num_letters >= MIN_LETTERS else None


MIXED_SCRIPTS: Final = Label(
    on_request="mixed_scripts",
    columns=(
        Column("mixed_scripts", Kind.REAL, "share of sampled letters in other scripts; null if not measured or short",
               Measure("Letters of other scripts"), lambda texts: mixed_scripts(texts.sampled_text)),
    ),
    filters=(
        above("mixed_scripts", Reason("mixed_scripts", "too much of it is in another script"), "in one script",
            Limit("max_mixed_scripts", number(float, ge=0.0, le=1.0),
            "Largest share of sampled letters in another script than most, such as Chinese in an English chain of "
            "thought; Latin counts in none. Begin with 0.02, and with null for lessons in a language.")),
    ),
)  # fmt: skip
