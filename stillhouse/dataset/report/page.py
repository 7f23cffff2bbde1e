"""The report page and the card of a dataset.

The page is one HTML file without external resources. Text of rows is escaped and cut, and control characters are
replaced. Equal summaries, origins and samples give equal bytes.
"""

import re
from pathlib import Path
from typing import Any, Final

import yaml

from stillhouse.dataset.report import sections
from stillhouse.dataset.report.card import dataset_card
from stillhouse.dataset.report.origin import Origin, lineage_rows
from stillhouse.dataset.report.plots import funnel_figure, histogram
from stillhouse.dataset.report.samples import SampleRows, draw_samples, view_row
from stillhouse.dataset.report.summary import DatasetSummary, Split
from stillhouse.report.conversation import cut
from stillhouse.report.environment import CONVERSATION_CSS, REPORT_CSS, page_environment, style_sheet
from stillhouse.store.atomic import write_atomic

_FOLDER: Final = Path(__file__).parent
_MAX_PLOTS: Final = 24
_CONTROL_CHARACTERS: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def render_page(summary: DatasetSummary, origin: Origin, samples: SampleRows) -> str:
    """Return the page as HTML, which encodes as UTF-8."""
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
        plots=_plots(summary),
        **_tables(summary, origin),
        kept_rows=[view_row(row) for row in samples.kept],
        dropped_rows=[view_row(row) for row in samples.dropped],
        duplicate_rows=[(view_row(row), original and view_row(original)) for row, original in samples.duplicates],
        contaminated_rows=[view_row(row) for row in samples.contaminated],
    )
    return _CONTROL_CHARACTERS.sub("\ufffd", html)


def _title(summary: DatasetSummary) -> str:
    teachers = [name for name, _ in summary.rows_by("teacher") if name is not None]
    source = f"{len(teachers)} teachers" if len(teachers) > 1 else cut(teachers[0], 80) if teachers else "no teacher"
    return f"{summary.num_kept:,} row{'' if summary.num_kept == 1 else 's'} from {source}"


def _plots(summary: DatasetSummary) -> list[tuple[str, str, str]]:
    """Return title, caption and SVG of each plot."""
    drawn = [(m, parts) for m, parts in summary.measures() if m.is_drawn][:_MAX_PLOTS]
    made = [(m, parts, histogram(m, parts, f"h{place}")) for place, (m, parts) in enumerate(drawn)]
    return [(m.title, sections.caption(m, parts), svg) for m, parts, svg in made if svg is not None]


def _tables(summary: DatasetSummary, origin: Origin) -> dict[str, Any]:
    tags, num_more_tags = sections.tag_accuracies(summary)
    return {
        "tiles": sections.tiles(summary),
        "has_student_tokens": summary.total("num_tokens") is not None,
        "has_sampled_tokens": summary.total("completion_tokens") is not None,
        "funnel_plot": funnel_figure(summary),
        "steps": sections.effective_steps(summary.funnel),
        "reasons": sections.reason_bars(summary),
        "accuracy": summary.verdicts.overall(),
        "tags": tags,
        "num_more_tags": num_more_tags,
        "verifiers": sections.verifier_rows(summary),
        "duplicates": _by_name(summary, "duplicates"),
        "overlaps": _by_name(summary, "overlaps"),
        "measures": [(m.title, sections.measure_row(m, parts)) for m, parts in summary.measures()],
        "categories": sections.categories(summary),
        "usage": sections.usage_rows(summary),
        "lineage": lineage_rows(summary, origin),
    }


def _by_name(summary: DatasetSummary, name: str) -> list[tuple[Any, Split]]:
    return sorted(summary.rows_by(name), key=lambda row: tuple(("" if part is None else part) for part in row[0]))


CARD_FILE: Final = "README.md"
REPORT_FILE: Final = "report.html"


def write_report(folder: Path, summary: DatasetSummary, origin: Origin) -> None:
    """Write README.md and report.html into the folder of a dataset, each atomically."""
    page = render_page(summary, origin, draw_samples(folder))
    write_atomic(folder / CARD_FILE, dataset_card(summary, origin).encode("utf-8"))
    write_atomic(folder / REPORT_FILE, page.encode("utf-8"))
