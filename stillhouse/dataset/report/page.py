"""The report page: one HTML file that needs nothing beside it.

Text of rows is escaped and cut, and characters that are none are replaced. Equal summaries, origins and samples give
equal bytes.
"""

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from stillhouse.dataset.report import sections
from stillhouse.dataset.report.findings import Counts, Split
from stillhouse.dataset.report.lineage import lineage_rows
from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.report.plots import histogram, picture_of_funnel
from stillhouse.dataset.report.row_view import view_row
from stillhouse.dataset.report.samples import Samples
from stillhouse.dataset.report.summary import DatasetSummary
from stillhouse.report.conversation import cut
from stillhouse.report.environment import CONVERSATION_CSS, REPORT_CSS, page_environment, style_sheet

_FOLDER: Final = Path(__file__).parent
_MOST_PICTURES: Final = 24
_NO_CHARACTERS: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class Picture(NamedTuple):
    """A histogram and what is said above it."""

    title: str
    caption: str
    svg: str


def render_page(summary: DatasetSummary, origin: Origin, samples: Samples) -> str:
    """The page as HTML, which encodes as UTF-8."""
    environment = page_environment(_FOLDER)
    environment.filters["compact"] = sections.compact
    environment.globals["interval_of"] = sections.interval_of
    html = environment.get_template("report.html.j2").render(
        title=_title(summary),
        summary=summary,
        facts=summary.facts(),
        origin=origin,
        style=style_sheet(REPORT_CSS, CONVERSATION_CSS, _FOLDER / "report.css"),
        config=yaml.safe_dump(origin.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        pictures=_pictures(summary),
        **_tables(summary, origin),
        kept_rows=[view_row(row) for row in samples.kept],
        dropped_rows=[view_row(row) for row in samples.dropped],
        duplicate_rows=[
            (view_row(pair.row), None if pair.original is None else view_row(pair.original))
            for pair in samples.duplicates
        ],
        contaminated_rows=[view_row(row) for row in samples.contaminated],
    )
    return _NO_CHARACTERS.sub("\ufffd", html)


def _title(summary: DatasetSummary) -> str:
    teachers = [name for name, _ in summary.findings.categories["teacher"].rows() if name is not None]
    source = f"{len(teachers)} teachers" if len(teachers) > 1 else cut(teachers[0], 80) if teachers else "no teacher"
    return f"{summary.num_kept:,} row{'' if summary.num_kept == 1 else 's'} from {source}"


def _pictures(summary: DatasetSummary) -> list[Picture]:
    drawn = [(m, parts) for m, parts in summary.measurements.every() if m.is_drawn][:_MOST_PICTURES]
    made = [(m, parts, histogram(m, parts, f"h{place}")) for place, (m, parts) in enumerate(drawn)]
    return [Picture(m.label, sections.caption(m, parts), svg) for m, parts, svg in made if svg is not None]


def _tables(summary: DatasetSummary, origin: Origin) -> dict[str, Any]:
    tags, num_more_tags = sections.tag_accuracies(summary)
    return {
        "tiles": sections.tiles(summary),
        "has_student_tokens": summary.tokens is not None,
        "has_sampled_tokens": summary.measurements.total("completion_tokens") is not None,
        "funnel_picture": picture_of_funnel(summary),
        "steps": sections.telling_steps(summary.funnel),
        "reasons": sections.reason_bars(summary),
        "accuracy": summary.verdicts.overall(),
        "tags": tags,
        "num_more_tags": num_more_tags,
        "verifiers": sections.verifier_rows(summary),
        "duplicates": _by_name(summary.findings.duplicates),
        "overlaps": _by_name(summary.findings.overlaps),
        "measures": [(m.label, sections.measure_row(m, parts)) for m, parts in summary.measurements.every()],
        "categories": sections.categories(summary),
        "usage": sections.usage_rows(summary),
        "lineage": lineage_rows(summary, origin),
    }


def _by_name(counts: Counts) -> list[tuple[Any, Split]]:
    return sorted(counts.rows(), key=lambda row: tuple(("" if part is None else part) for part in row[0]))
