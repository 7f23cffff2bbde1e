"""Scores by name, of rewards, judges and functions of `labels.file`, and the objections of those functions."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from types import GenericAlias
from typing import TYPE_CHECKING, Final

from stillhouse.labels.declare import Column, Filter, Kind, Label, Limit, Reason, between

if TYPE_CHECKING:
    import pandas as pd


def score_column(name: str) -> str:
    """Return the column of a frame of labels that holds a score."""
    return f"scores.{name}"


def _beyond(end: int, reason: Reason) -> Filter:
    """Return the filter of rows of which some score is beyond one end of its band, even if others are null."""

    def drops(rows: "pd.DataFrame", bands: Mapping[str, Sequence[float | None]]) -> "pd.Series[bool] | None":
        limits = [(rows[score_column(name)], band[end]) for name, band in bands.items() if band[end] is not None]
        masks = [scores > limit if end else scores < limit for scores, limit in limits]
        return reduce(or_, masks) if masks else None

    return Filter(reason, "with scores within limits", (), drops, _LIMIT, 150)


_LIMIT: Final = Limit("scores", GenericAlias(dict, (str, between(float, is_optional=False))),
    "Lowest and highest scores by name, such as `judge/clarity: [0.6, null]`; null sets no limit. Names are "
    "`judge/NAME`, `reward`, `reward/NAME`, or a function of `labels.file`. Begin without, and see the scores of rows "
    "you would drop in the dataset's report.", off={})  # fmt: skip
SCORES: Final = Label(
    on_request="rewards",
    wanted=lambda dataset: any(name.partition("/")[0] == "reward" for name in dataset.score_names),
    place=90,
    columns=(
        Column(
            "scores", Kind.JSON, "scores by name: `reward`, `reward/NAME`, functions of `labels.file`; null if none"
        ),
    ),
    filters=(
        _beyond(0, Reason("score_low", "a score is too low")),
        _beyond(1, Reason("score_high", "a score is too high")),
    ),
)
OBJECTIONS: Final = Label(
    place=100,
    columns=(Column("objections", Kind.TEXTS, "reasons against the row that functions of `labels.file` gave"),),
    filters=(
        Filter(Reason("objection", "a function of dataset.labels.file objects"), "without objections",
               ("objections",), lambda rows, _: rows["objections"].list.len() > 0, place=140),
    ),
)  # fmt: skip
