"""Rows that repeat those of an earlier dataset; repeats within one are decided by `stillhouse.dataset.select`."""

from typing import Final, Literal

from stillhouse.labels.declare import Filter, Label, Limit, Reason

_LIMIT: Final = Limit("duplicates", Literal["keep", "exact", "near"],
    "Drop rows that repeat an earlier row after normalisation, or nearly; the samples of one prompt count as well. "
    "`near` for prompts gathered from several places.", off="keep")  # fmt: skip


def _repeats(kind: str, settings: tuple[str, ...], reason: Reason) -> Filter:
    def drops(rows, setting):  # type: ignore[no-untyped-def]
        is_of_kind = rows["duplicate_kind"] == kind
        return rows["duplicate_source"].notna() & is_of_kind if setting in settings else None

    return Filter(reason, "not a duplicate", ("duplicate_source", "duplicate_kind"), drops, _LIMIT, 300)


DUPLICATES: Final = Label(
    on_request="near_duplicates",
    wanted=lambda dataset: dataset.filters.duplicates == "near",
    filters=(
        _repeats("exact", ("exact", "near"), Reason("duplicate", "it repeats a kept row or an earlier dataset")),
        _repeats("near", ("near",), Reason("near_duplicate", "it nearly repeats a kept row or an earlier dataset")),
    ),
)
