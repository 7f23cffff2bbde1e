"""Lengths under the student's chat template, by `stillhouse.dataset.labelling.rendering`."""

from typing import Final

from stillhouse.labels.declare import FLAW, Column, Filter, Kind, Label, Measure, Reason, present

RENDERING: Final = Label(
    place=120,
    columns=(
        Column("num_tokens", Kind.WHOLE,
               "longest of its samples under the student's chat template; null if not rendered",
               Measure("Student tokens", "count")),
        Column("num_supervised_tokens", Kind.WHOLE,
               "tokens of all its samples that are trained on; null if not rendered",
               Measure("Supervised tokens", "count", is_drawn=False)),
        Column("template_problem", Kind.TEXT,
               "why the student's template refuses the row, or what it alters; else null", FLAW),
    ),
    filters=(
        present("template_problem", Reason("template_error", "the student's chat template cannot render the messages"),
                "rendered by the student's template", None, 170),
        # Without a limit of its own, it gets what `drop_bits` is given: student.max_length.
        Filter(Reason("too_long", "more student tokens than student.max_length"), "short enough", ("num_tokens",),
               lambda rows, longest: None if longest is None else rows["num_tokens"] > longest, place=180),
        Filter(Reason("nothing_supervised", "no token of it would be trained on"), "with something to learn",
               ("num_supervised_tokens",), lambda rows, _: rows["num_supervised_tokens"] == 0, place=190),
    ),
)  # fmt: skip
