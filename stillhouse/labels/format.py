"""Problems of form, by `stillhouse.dataset.labelling.format`."""

from typing import Final

from stillhouse.labels.declare import FLAW, Column, Kind, Label, Limit, Reason, present

FORMAT: Final = Label(
    place=70,
    columns=(
        Column("format_problem", Kind.TEXT, "how the answer misses the format asked for; null if it does not", FLAW),
    ),
    filters=(
        present("format_problem", Reason("format", "something is wrong with the form of what was written"),
            "in the format asked for", Limit("check_format", bool,
            "Drop rows whose think tags do not match, whose code fence is never closed, or whose content holds a tool "
            "call or a special token.", off=False, default=True), 80),
    ),
)  # fmt: skip
