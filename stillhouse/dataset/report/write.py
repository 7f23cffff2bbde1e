"""Writes a dataset's card and report beside its files."""

from pathlib import Path
from typing import Final

from stillhouse.dataset.report.card import dataset_card
from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.report.page import render_page
from stillhouse.dataset.report.samples import draw_samples
from stillhouse.dataset.report.summary import DatasetSummary
from stillhouse.store.atomic import write_atomic

CARD_FILE: Final = "README.md"
REPORT_FILE: Final = "report.html"


def write_report(folder: Path, summary: DatasetSummary, origin: Origin) -> None:
    """Writes README.md and report.html into the folder of a dataset, each whole or not at all.

    Args:
        folder: Holds the dataset's files.
        summary: What `summarise` made of them.
        origin: What they were made from.

    Raises:
        InputError: a file is missing, damaged, or no dataset of ours.
        StoreError: the folder cannot be written to.
    """
    page = render_page(summary, origin, draw_samples(folder))
    write_atomic(folder / CARD_FILE, dataset_card(summary, origin).encode("utf-8"))
    write_atomic(folder / REPORT_FILE, page.encode("utf-8"))
