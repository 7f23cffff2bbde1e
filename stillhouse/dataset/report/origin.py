"""Where a dataset comes from: everything that decides what is in it, as names and hashes."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stillhouse.config import DatasetConfig
from stillhouse.dataset.report.summary import DatasetSummary
from stillhouse.report.conversation import cut
from stillhouse.store.fingerprint import digest

if TYPE_CHECKING:
    from stillhouse.inference.price import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Inputs of a dataset. No dates: equal content has an equal origin."""

    config: DatasetConfig
    code_version: str
    """Version of Stillhouse. No commit: a folder whose rows are the same would get another fingerprint."""
    student: str | None
    """Identity of the model whose chat template rendered the rows; None if they were not rendered."""
    max_tokens: int | None
    """Longest row kept, in student tokens; None if rows were not rendered."""
    price: "Price | None" = None
    """Price of the teacher; None if unknown."""
    lineage: dict[str, str] = field(default_factory=dict)
    """Names and fingerprints of the inputs."""


def lineage_rows(summary: DatasetSummary, origin: Origin) -> list[tuple[str, str]]:
    """Return names and values for the lineage table, as plain text."""
    return [
        *_named(summary, "teacher"),
        *_named(summary, "sampling"),
        ("price of the teacher", "unknown" if origin.price is None else str(origin.price)),
        ("student whose chat template was checked", origin.student or "none: dataset.labels.render is off"),
        *([] if origin.max_tokens is None else [("longest row kept", f"{origin.max_tokens:,} student tokens")]),
        ("config of the dataset", digest(origin.config.identity())),
        ("Stillhouse", origin.code_version),
        *sorted(origin.lineage.items()),
    ]


def _named(summary: DatasetSummary, column: str) -> list[tuple[str, str]]:
    known = [(kind, split) for kind, split in summary.rows_by(column) if kind is not None]
    return [(column, f"{cut(kind, 200)} ({split.total:,} rows)") for kind, split in known]
