"""Answers that decline, by `stillhouse.dataset.labelling.refusals`."""

from typing import Final

from stillhouse.labels.declare import FLAW, Column, Kind, Label, Limit, Reason, present

REFUSAL: Final = Label(
    place=40,
    columns=(Column("refusal", Kind.TEXT, "the words with which the answer declines; null if it does not", FLAW),),
    filters=(
        present("refusal", Reason("refusal", "the answer declines"), "not refused", Limit("drop_refusals", bool,
            "Drop answers that refuse, or that mention being a language model. Look at those it drops once: it goes by "
            "phrases.", off=False), 90),
    ),
)  # fmt: skip
