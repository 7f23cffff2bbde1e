"""Builds a dataset from labelled shards: selects and writes rows, and reports on every one."""

from collections.abc import Sequence
from pathlib import Path

from stillhouse.config import DatasetConfig
from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.report.page import write_report
from stillhouse.dataset.report.summary import summarise
from stillhouse.dataset.schema import CandidateShard
from stillhouse.dataset.select.select import select_rows
from stillhouse.dataset.write import write_rows
from stillhouse.types import JsonObject


def assemble_dataset(shards: Sequence[CandidateShard], origin: Origin, folder: Path) -> tuple[int, JsonObject]:
    """Fill `folder` with train.parquet, validation.parquet, rejected.parquet, a card (README.md) and report.html.

    Files, card and report depend on the arguments alone. Memory holds a row group and a few dozen bytes a row. Returns
    the number of rows kept, and `DatasetSummary.facts`. Raises InputError if no row is kept to train on; ConfigError if
    the config names a score or a tag that no row has.
    """
    selection = select_rows(shards, origin.config, max_tokens=origin.max_tokens)
    write_rows(shards, selection, folder)
    summary = summarise(folder, num_repeated=int(selection.repeated.sum()))
    write_report(folder, summary, origin)
    return summary.num_kept, summary.facts()


def max_row_tokens(config: DatasetConfig, max_length: int) -> int | None:
    """Return the maximum student tokens of a kept row; None if rows are not rendered."""
    return max_length if config.labels.render else None
