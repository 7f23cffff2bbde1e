"""Overlaps with evaluation sets, by `stillhouse.dataset.contamination`."""

from typing import Final

from stillhouse.labels.declare import Column, Filter, Kind, Label, Limit, Reason, number

CONTAMINATION: Final = Label(
    place=110,
    columns=(
        Column("contamination", Kind.JSONS,
               "overlaps with evaluation sets: set, row, part, ngram, text; null: not sought"),
    ),
    filters=(
        Filter(Reason("contaminated", "so many words in a row, or more, stand in an evaluation set"),
            "not in an evaluation set", (), lambda rows, least: rows["longest_overlap"] >= least,
            Limit("contamination_ngrams", number(int, ge=1),
            "Drop rows that share at least this many consecutive words with an evaluation set; null drops none. "
            "Overlaps of 8 words, and of 13 as in GPT-3, are looked for in any case. Take 13 if 8 drops rows for "
            "common phrases.", default=8), 160),
    ),
)  # fmt: skip
