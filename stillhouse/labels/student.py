"""How hard a row is for the student before it is trained, by `stillhouse.dataset.difficulty`."""

from typing import Final

from stillhouse.labels.declare import Column, Kind, Label, Limit, Measure, Reason, between, outside

_STEP: Final = "as hard as asked for"
_TOO_EASY: Final = Reason("too_easy", "the student knows the row already, or always solves its prompt")
_TOO_HARD: Final = Reason("too_hard", "the student would hardly say it, or never solves its prompt")

STUDENT_NLL: Final = Label(
    on_request="student_nll",
    file="difficulty",
    place=210,
    columns=(
        Column("student_nll", Kind.REAL, "mean negative log-likelihood of supervised tokens under the student, in nats",
               Measure("Student's surprise in nats")),
    ),
    filters=outside("student_nll", _TOO_EASY, _TOO_HARD, _STEP, Limit("student_nll", between(float, ge=0.0),
        "Lowest and highest mean negative log-likelihood of the supervised tokens under the student, in nats; null "
        "sets no limit. Below, the row is known already; above, rows are often broken or in another language. Begin "
        "with the lowest tenth in the dataset's report. One forward pass a row."), 200),
)  # fmt: skip
STUDENT_PASS_RATE: Final = Label(
    file="difficulty",
    place=220,
    columns=(
        Column("student_pass_rate", Kind.REAL, "share of the student's own answers to the prompt that are right",
               Measure("Student's pass rate")),
    ),
    filters=outside("student_pass_rate", _TOO_HARD, _TOO_EASY, _STEP,
        Limit("student_pass_rate", between(float, ge=0.0, le=1.0),
        "Lowest and highest share of the student's own answers to the prompt that are right; null sets no limit. Above "
        "0 drops what it never solves, below 1 what it always solves, from which it learns least. Goes by what "
        "`labels.student_samples` measures."), 200),
)  # fmt: skip
