"""Verdict on the answer, by the verifier of its prompt."""

from typing import Final

from stillhouse.labels.declare import Column, Filter, Kind, Label, Limit, Reason

VERDICT: Final = Label(
    place=10,
    columns=(
        Column("verifier", Kind.TEXT, "how the answer was verified; null without metadata of the prompt"),
        Column("verified", Kind.FLAG, "true: right; false: wrong; null: unverified"),
        Column("compared", Kind.TEXT, "the text of the answer that was compared; the code's first line under `python`"),
        Column("verification", Kind.TEXT,
               "why the answer is wrong or unverified, where there is more to say than that"),
    ),
    filters=(
        Filter(Reason("wrong", "the answer is not the expected one or was not reached"), "not wrong", ("verified",),
            lambda rows, _: ~rows["verified"], Limit("drop_wrong", bool,
            "Drop trajectories whose answer is verified as wrong. Off for a verifier that you do not trust yet.",
            off=False, default=True), 30),
        Filter(Reason("unverified", "nothing verifies the answer"), "verified or allowed unverified", ("verified",),
            lambda rows, _: rows["verified"].isna(), Limit("keep_unverified", bool,
            "Keep trajectories that nothing verifies. Off, prompts without an expected answer give no row.",
            off=True, default=True), 40),
    ),
)  # fmt: skip
