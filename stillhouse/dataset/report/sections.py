"""Contents of the report's tiles and tables."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from stillhouse.dataset.report.figures import FLAWS, KINDS, USAGE_COLUMNS, Accuracy, Step
from stillhouse.dataset.report.summary import DatasetSummary, KeptAndDropped, Split
from stillhouse.dataset.select.reasons import MEANINGS
from stillhouse.labels.declare import Kinds, Measure
from stillhouse.report import format as formats
from stillhouse.report.conversation import cut

_MAX_CATEGORIES: Final = 15
_MAX_TAGS: Final = 40
_NAME_CHARS: Final = 80
_UNKNOWN: Final = "some rows do not say"


class Bar(NamedTuple):
    """Rows of one category; shares are relative to the largest category."""

    name: str
    split: Split
    kept_share: float
    dropped_share: float


class Category(NamedTuple):
    title: str
    bars: list[Bar]
    num_others: int
    """Categories too rare to be listed."""


def tiles(summary: DatasetSummary) -> Iterator[tuple[str, str, str]]:
    """Yield name, figure and note of each tile."""
    share = formats.percent(summary.num_kept / summary.num_rollouts if summary.num_rollouts else None)
    yield "Rows kept", formats.count(summary.num_kept), f"{share} of {formats.count(summary.num_rollouts)} rollouts"
    accuracy = summary.verdicts.overall()
    if accuracy is None:
        yield "Teacher right", formats.DASH, "nothing verified"
    else:
        note = f"{interval_of(accuracy)} of {formats.count(accuracy.right + accuracy.wrong)} verified"
        yield "Teacher right", formats.percent(accuracy.share), note
    if summary.total("num_tokens") is not None:
        note = f"{compact(summary.total('num_supervised_tokens'))} of them supervised"
        yield "Student tokens kept", compact(summary.total("num_tokens")), note
    sampled, spent = summary.used("completion_tokens"), summary.used("cost_usd")
    note = _UNKNOWN if sampled is None else f"{compact(sampled)} sampled in all"
    yield "Tokens per kept row", formats.count(summary.per_kept_row("completion_tokens")), note
    note = _UNKNOWN if spent is None else f"{formats.dollars(spent)} in all"
    yield "Cost per kept row", formats.dollars(summary.per_kept_row("cost_usd")), note


def interval_of(accuracy: Accuracy) -> str:
    return formats.interval(accuracy.interval.low, accuracy.interval.high)


def compact(value: float | None) -> str:
    """Return `1.84 M`, `12.3 k`, `640`."""
    if value is None:
        return formats.DASH
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if sign == 'k' else size):#.3g}".rstrip(".") + f"\u202f{sign}"
    return formats.count(value)


def in_unit(value: float | None, unit: str) -> str:
    if value is None:
        return formats.DASH
    if unit == "count":
        return formats.count(value) if value >= 100 or value == round(value) else f"{value:.1f}"
    return {"usd": formats.dollars, "seconds": formats.seconds}.get(unit, "{:.3g}".format)(value)


def effective_steps(funnel: Sequence[Step]) -> list[tuple[Step, int]]:
    """Return the first and last step and those that drop rows, each with the number it drops."""
    drops = [0, *(before.num_rows - step.num_rows for before, step in pairwise(funnel))]
    last = len(funnel) - 1
    return [(step, drops[at]) for at, step in enumerate(funnel) if drops[at] or at in (0, last)]


def reason_bars(summary: DatasetSummary) -> list[tuple[Bar, str]]:
    """Return dropped rows by reason, most frequent first, with the meaning of each."""
    rows = sorted(summary.drop_reasons.items(), key=lambda item: -item[1])
    most = max((count for _, count in rows), default=1)
    return [(Bar(name.replace("_", " "), Split(0, count), 0.0, count / most), MEANINGS[name]) for name, count in rows]


def tag_accuracies(summary: DatasetSummary) -> tuple[list[tuple[str, Accuracy]], int]:
    """Return accuracy by tag in alphabetical order, and the number of rarer tags that are not listed."""
    by_tag = summary.verdicts.by_tag()
    common = sorted(by_tag, key=lambda tag: -by_tag[tag].right - by_tag[tag].wrong)[:_MAX_TAGS]
    listed = [
        ("(no tag)" if tag is None else cut(tag, _NAME_CHARS), accuracy)
        for tag, accuracy in by_tag.items()
        if tag in common
    ]
    return listed, len(by_tag) - len(listed)


def verifier_rows(summary: DatasetSummary) -> list[tuple[str, int, int, int]]:
    """Return the name of each verifier, and the rows that are right, wrong and unverified under it."""
    counts: dict[str, dict[bool | None, int]] = {}
    for (verifier, verdict), split in summary.rows_by("verdicts"):
        counts.setdefault("(none)" if verifier is None else verifier, {})[verdict] = split.total
    return [
        (name, verdicts.get(True, 0), verdicts.get(False, 0), verdicts.get(None, 0))
        for name, verdicts in sorted(counts.items())
    ]


def categories(summary: DatasetSummary) -> list[Category]:
    """Return tables of rows by category, without empty ones."""
    flaws = [(flaw.replace("_", " "), split) for flaw in FLAWS for _, split in summary.rows_by(flaw)]
    shown = [_category(kinds, summary.rows_by(name)) for name, kinds in KINDS.items()]
    shown.append(_category(Kinds("Flaws"), sorted(flaws, key=lambda flaw: -flaw[1].total)))
    return [category for category in shown if category is not None]


def _category(kinds: Kinds, rows: Sequence[tuple[Any, Split]]) -> Category | None:
    rows = [(kind, split) for kind, split in rows if split.total]
    if all(kind is None for kind, _ in rows):
        return None
    most = max(split.total for _, split in rows)
    bars = [
        Bar(
            kinds.missing if kind is None else cut(str(kind), _NAME_CHARS),
            split,
            split.kept / most,
            split.dropped / most,
        )
        for kind, split in rows
    ]
    return Category(kinds.title, bars[:_MAX_CATEGORIES], max(0, len(bars) - _MAX_CATEGORIES))


def measure_row(measure: Measure, parts: KeptAndDropped) -> list[str]:
    """Return the number of rows, then quantiles and mean of kept rows, and the mean of dropped rows."""
    figures = [parts.kept.quantile(share) for share in (0.0, 0.05, 0.5, 0.95, 1.0)]
    means = [parts.kept.mean, parts.dropped.mean]
    return [formats.count(parts.num_values), *(in_unit(figure, measure.unit) for figure in (*figures, *means))]


def caption(measure: Measure, parts: KeptAndDropped) -> str:
    """Return the median and 90 % range of the kept rows, or of the dropped ones if none is kept."""
    part = parts.kept if parts.kept.num_values else parts.dropped
    low, middle, high = (in_unit(part.quantile(share), measure.unit) for share in (0.05, 0.5, 0.95))
    return f"median {middle}, 90\u202f% within {low} to {high}"


def usage_rows(summary: DatasetSummary) -> list[list[str]]:
    """Return the usage in all, by kept rows, by dropped rows, and in all per kept row."""
    rows = []
    for column in USAGE_COLUMNS:
        form = formats.dollars if column == "cost_usd" else formats.count
        num_unknown = sum(part.num_unknown[column] for part in (summary.kept, summary.dropped))
        rows.append(
            [
                column.replace("_", " ").replace("usd", "").strip().capitalize(),
                *(form(summary.used(column, *parts)) for parts in ((), (summary.kept,), (summary.dropped,))),
                in_unit(summary.per_kept_row(column), "usd" if column == "cost_usd" else "count"),
                formats.count(num_unknown) if num_unknown else "",
            ]
        )
    return rows
