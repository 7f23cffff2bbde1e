"""Where a dataset comes from, as names and values."""

from typing import TYPE_CHECKING

from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.report.summary import DatasetSummary
from stillhouse.report.conversation import cut
from stillhouse.store.fingerprint import digest

if TYPE_CHECKING:
    from stillhouse.inference.endpoint import Price


def lineage_rows(summary: DatasetSummary, origin: Origin) -> list[tuple[str, str]]:
    """What the dataset was made from and with; plain text."""
    return [
        *_named(summary, "teacher"),
        *_named(summary, "sampling"),
        ("price of the teacher", _price(origin.price)),
        ("student whose chat template was checked", origin.student or "none: dataset.labels.render is off"),
        *([] if origin.max_tokens is None else [("longest row kept", f"{origin.max_tokens:,} student tokens")]),
        ("config of the dataset", digest(origin.config.model_dump(mode="json"))),
        ("Stillhouse", origin.code_version),
        *sorted(origin.lineage.items()),
    ]


def _named(summary: DatasetSummary, column: str) -> list[tuple[str, str]]:
    known = [(kind, split) for kind, split in summary.findings.categories[column].rows() if kind is not None]
    return [(column, f"{cut(kind, 200)} ({split.total:,} rows)") for kind, split in known]


def _price(price: "Price | None") -> str:
    if price is None:
        return "unknown"
    parts = [(price.prompt, "prompt"), (price.completion, "completion"), (price.cached_prompt, "cached prompt"),
             (price.reasoning, "reasoning")]  # fmt: skip
    told = ", ".join(f"${usd:g} {name}" for usd, name in parts if usd is not None) + " per million tokens"
    return f"{told}, ${price.request:g} a request" if price.request else told
