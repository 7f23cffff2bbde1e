"""Builds a dataset from labelled shards: selects and writes rows, and reports on every one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from stillhouse.chat.refs import model_identity
from stillhouse.config import DatasetConfig, StudentConfig, ToolsConfig
from stillhouse.dataset.labelling.label import Labelling, label_shard
from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.report.page import write_report
from stillhouse.dataset.report.summary import summarise
from stillhouse.dataset.schema import CANDIDATES_FILE, SIGNATURES_FILE, CandidateShard
from stillhouse.dataset.select.select import select_rows
from stillhouse.dataset.write import write_rows
from stillhouse.types import JsonObject, PromptMetadata, Trajectory
from stillhouse.version import code_version


def build_dataset(
    trajectories: Iterable[Trajectory],
    metadata: Mapping[str, PromptMetadata],
    config: DatasetConfig,
    *,
    tokenizer_ref: str,
    max_length: int,
    folder: Path,
    lineage: Mapping[str, str] | None = None,
) -> tuple[int, JsonObject]:
    """Label trajectories in this process and fill the empty `folder` as `assemble_dataset` does.

    Labels by a judge or the student are not measured. Among equal rollout keys the first trajectory wins; a prompt
    without an entry in `metadata`, by prompt id, is unverified. `tokenizer_ref` is the student, whose chat template is
    used, `max_length` the longest training row in its tokens, `lineage` names and fingerprints of inputs for the card.
    Raises as `assemble_dataset`, and ConfigError for a file or a tokenizer that cannot be used.
    """
    from stillhouse.dataset.duplicates.find import find_duplicates

    labelling = Labelling.of(config, tools=ToolsConfig(), student=StudentConfig(model=tokenizer_ref))
    with TemporaryDirectory(dir=folder.parent) as name:
        work = Path(name)
        label_shard(trajectories, metadata, labelling, work)
        shard = CandidateShard(work / CANDIDATES_FILE, work / SIGNATURES_FILE)
        (part,) = find_duplicates([shard], config.comparison, work)
        origin = Origin(
            config=config,
            code_version=code_version(),
            student=model_identity(tokenizer_ref) if config.labels.render else None,
            max_tokens=max_row_tokens(config, max_length),
            lineage=dict(lineage or {}),
        )
        return assemble_dataset([replace(shard, duplicates=part)], origin, folder)


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
