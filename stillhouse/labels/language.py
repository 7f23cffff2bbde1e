"""Language of the answer, by `stillhouse.dataset.labelling.language`."""

from typing import Annotated, Final

from pydantic import Field

from stillhouse.labels.declare import Column, Filter, Kind, Kinds, Label, Limit, Reason

LANGUAGE: Final = Label(
    on_request="language",
    place=30,
    columns=(
        Column("language", Kind.TEXT, "language of the answer as ISO 639-1 code; null if not identified",
               Kinds("Languages", missing="(not identified)")),
        Column("language_confidence", Kind.REAL, "probability of it; null likewise"),
    ),
    filters=(
        Filter(Reason("language", "the answer's language is not an allowed one"), "in an allowed language",
            ("language",), lambda rows, allowed: rows["language"].notna() & ~rows["language"].isin(allowed),
            Limit("languages", tuple[Annotated[str, Field(pattern=r"^[a-z]{2}$")], ...],
            "ISO 639-1 codes of the languages an answer may have, such as `de`; empty allows any. Short answers are "
            "often taken for another language: look at what is dropped.", off=()), 100),
    ),
)  # fmt: skip
