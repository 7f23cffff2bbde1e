"""Summary of a dataset's files, computed in one pass over their label columns.

Needs memory for a batch, 8 bytes for each value of a measure, and 29 a row: hashes of prompt and cluster, and the
verdict.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from stillhouse.dataset.read import iter_columns
from stillhouse.dataset.report.figures import (
    FLAWS,
    KINDS,
    MEASURES,
    USAGE_COLUMNS,
    Distribution,
    Figures,
    FunnelCounts,
    Step,
    VerifiedRows,
    hashes,
)
from stillhouse.dataset.schema import DATASET_FILES, KEPT_FILES, RECORDED_FILE
from stillhouse.dataset.select.reasons import STEPS
from stillhouse.labels.declare import Measure
from stillhouse.report.conversation import cut
from stillhouse.store.fingerprint import file_sha256
from stillhouse.types import JsonObject

_COLUMNS: Final = tuple(
    dict.fromkeys(
        (
            *(*MEASURES, *USAGE_COLUMNS, *KINDS, *FLAWS),
            *("sampling", "prompt_id", "prompt_cluster", "drop_reasons", "verifier", "verified", "duplicate_of"),
            *("duplicate_kind", "duplicate_source", "contamination", "scores", "judge"),
        )
    )
)


class FileFacts(NamedTuple):
    num_rows: int
    sha256: str


class Split(NamedTuple):
    """Rows of one category, kept and dropped."""

    kept: int
    dropped: int

    @property
    def total(self) -> int:
        return self.kept + self.dropped


class KeptAndDropped(NamedTuple):
    """Distributions of one measure among kept and among dropped rows."""

    kept: Distribution
    dropped: Distribution

    @property
    def num_values(self) -> int:
        return self.kept.num_values + self.dropped.num_values


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """Figures of a dataset. Distinct trajectories are the rows of its files, kept and dropped."""

    files: dict[str, FileFacts]
    num_repeated: int
    """Rollouts with the key of an earlier one; they are in no file."""
    funnel: list[Step]
    """Starts with the distinct trajectories."""
    drop_reasons: dict[str, int]
    verdicts: VerifiedRows
    kept: Figures
    dropped: Figures
    num_prompts: int
    num_clusters: int | None
    """Groups of near-duplicate prompts; None if they were not searched for."""

    @property
    def num_kept(self) -> int:
        return sum(self.files[name].num_rows for name in KEPT_FILES)

    @property
    def num_rows(self) -> int:
        """Return the number of distinct trajectories."""
        return sum(self.files[name].num_rows for name in DATASET_FILES)

    @property
    def num_rollouts(self) -> int:
        """Return the number of trajectories, repeated ones included."""
        return self.num_rows + self.num_repeated

    def used(self, column: str, *parts: Figures) -> float | None:
        """Return the sum of a column of usage over `parts`, or all rows; None, not zero, if a row reports no value."""
        parts = parts or (self.kept, self.dropped)
        if any(part.num_unknown[column] for part in parts):
            return None
        total = math.fsum(chain.from_iterable(part.measures[column].sums for part in parts))
        return total if column == "cost_usd" else round(total)

    def rows_by(self, name: str) -> list[tuple[Any, Split]]:
        """Return rows by the values that `Figures.counts` has under this name, most frequent first, ties by value."""
        kept, dropped = self.kept.counts[name], self.dropped.counts[name]
        rows = [(value, Split(kept[value], dropped[value])) for value in {**kept, **dropped}]
        return sorted(rows, key=lambda row: (-row[1].total, row[0] is None, str(row[0])))

    def measures(self) -> list[tuple[Measure, KeptAndDropped]]:
        """Return the measures with values in the order of their columns, then scores by name."""
        kept, dropped = self.kept, self.dropped
        columns = [
            (measure, KeptAndDropped(kept.measures[name], dropped.measures[name])) for name, measure in MEASURES.items()
        ]
        scores = [
            (Measure(cut(name, 60)), KeptAndDropped(kept.scores[name], dropped.scores[name]))
            for name in sorted({*kept.scores, *dropped.scores})
        ]
        return [(measure, parts) for measure, parts in columns + scores if parts.num_values]

    def total(self, column: str) -> int | None:
        """Return the sum of a measured column of integers over the kept rows; None if no row has a value."""
        kept, dropped = self.kept.measures[column], self.dropped.measures[column]
        return round(kept.sum) if kept.num_values + dropped.num_values else None

    def per_kept_row(self, column: str) -> float | None:
        """Return the usage of all rows per kept row; None if unknown or if no row is kept."""
        total = self.used(column)
        return None if total is None or not self.num_kept else total / self.num_kept

    def facts(self) -> JsonObject:
        """Return figures as an artifact's facts; None if not measured or unknown."""
        duplicates: Counter[Any] = Counter()
        for (kind, _), split in self.rows_by("duplicates"):
            duplicates[kind] += split.total
        verdicts: Counter[bool | None] = Counter()
        for (_, verdict), split in self.rows_by("verdicts"):
            verdicts[verdict] += split.total
        compared = dict(self.rows_by("contaminated"))
        return {
            "funnel": [["rollouts", self.num_rollouts], *([step.name, step.num_rows] for step in self.funnel)],
            "kept": self.num_kept,
            "dropped": self.num_rows - self.num_kept,
            "duplicates": self.num_repeated,
            "exact_duplicates": duplicates["exact"],
            "near_duplicates": duplicates["near"],
            "contaminated": compared.get(True, Split(0, 0)).total if compared else None,
            "prompts": self.num_prompts,
            "clusters": self.num_clusters,
            "drop_reasons": self.drop_reasons,
            "right": verdicts[True],
            "wrong": verdicts[False],
            "unverified": verdicts[None],
            "train": self.files[KEPT_FILES[0]].num_rows,
            "validation": self.files[KEPT_FILES[1]].num_rows,
            "tokens": self.total("num_tokens"),
            "supervised_tokens": self.total("num_supervised_tokens"),
            # Prefixed, since the rollouts artifact reports its own cost and nothing must count it twice.
            "candidate_completion_tokens": self.used("completion_tokens"),
            "completion_tokens_kept": self.used("completion_tokens", self.kept),
            "completion_tokens_per_kept_row": self.per_kept_row("completion_tokens"),
            "candidate_cost_usd": self.used("cost_usd"),
            "cost_usd_per_kept_row": self.per_kept_row("cost_usd"),
        }


def summarise(folder: Path, *, num_repeated: int) -> DatasetSummary:
    """Return the summary of the dataset in `folder`; `num_repeated` rollouts have the key of an earlier one.

    Raises InputError if a file is missing or damaged, lacks a column, or has an unknown drop reason.
    """
    funnel, verdicts = FunnelCounts(STEPS), VerifiedRows()
    figures = {True: Figures(), False: Figures()}
    distinct: defaultdict[str, list[npt.NDArray[np.uint64]]] = defaultdict(list)
    for name in DATASET_FILES:
        for batch in iter_columns(folder / name, _COLUMNS):
            funnel.add(batch)
            verdicts.add(batch)
            figures[name in KEPT_FILES].add(batch)
            for column in ("prompt_id", "prompt_cluster"):
                distinct[column].append(np.unique(hashes(batch.column(column).drop_null())))
    # Among millions of rows the chance that two hashes collide is about a millionth.
    num_prompts, num_clusters = (
        len(np.unique(np.concatenate(distinct[column]))) if distinct else 0
        for column in ("prompt_id", "prompt_cluster")
    )
    names = [*DATASET_FILES, *([RECORDED_FILE] if (folder / RECORDED_FILE).exists() else [])]
    return DatasetSummary(
        files={name: FileFacts(pq.read_metadata(folder / name).num_rows, file_sha256(folder / name)) for name in names},
        num_repeated=num_repeated,
        funnel=funnel.steps(),
        drop_reasons=funnel.reasons(),
        verdicts=verdicts,
        kept=figures[True],
        dropped=figures[False],
        num_prompts=num_prompts,
        num_clusters=num_clusters or None,
    )
