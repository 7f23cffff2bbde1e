"""Figures over the rows of a dataset, collected batch by batch."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array

from stillhouse.dataset.schema import COLUMNS
from stillhouse.errors import InputError
from stillhouse.labels.declare import FLAW, Kinds, Measure
from stillhouse.verification.intervals import ConfidenceInterval, Group, effective_sample_size, wilson_interval

MEASURES: Final = {column.name: column.figure for column in COLUMNS if isinstance(column.figure, Measure)}
KINDS: Final = {column.name: column.figure for column in COLUMNS if isinstance(column.figure, Kinds)}
FLAWS: Final = tuple(column.name for column in COLUMNS if column.figure == FLAW)
"""Columns by name, and how the report shows them."""
USAGE_COLUMNS: Final = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens", "cost_usd")
_HASH_KEY: Final = "stillhouse/rows."
"""16 bytes, as SipHash takes them."""


def hashes(column: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the SipHash of each text, equal in every process."""
    texts = column.fill_null("").to_numpy(zero_copy_only=False)
    return np.asarray(hash_array(texts.astype(object), hash_key=_HASH_KEY, categorize=False), dtype=np.uint64)


class Distribution:
    """Finite values of a column, 8 bytes each; others are ignored."""

    def __init__(self) -> None:
        self._parts = [np.zeros(0)]
        self.sums: list[float] = []
        """Of the values, batch by batch."""

    def add(self, values: npt.NDArray[np.float64]) -> None:
        self._parts.append(values[np.isfinite(values)])
        self.sums.append(math.fsum(self._parts[-1]))

    @property
    def num_values(self) -> int:
        return sum(map(len, self._parts))

    @property
    def sum(self) -> float:
        return math.fsum(self.sums)

    @property
    def mean(self) -> float | None:
        return self.sum / self.num_values if self.num_values else None

    def quantile(self, share: float) -> float | None:
        """Return the smallest value that at least `share` of the values do not exceed; None without any."""
        values = self.values()
        return float(np.quantile(values, share, method="inverted_cdf")) if len(values) else None

    def values(self) -> npt.NDArray[np.float64]:
        self._parts = [np.concatenate(self._parts)]
        return self._parts[0]


class Figures:
    """Figures of the kept rows, or of the dropped ones."""

    def __init__(self) -> None:
        self.measures: defaultdict[str, Distribution] = defaultdict(Distribution)
        """By column."""
        self.scores: defaultdict[str, Distribution] = defaultdict(Distribution)
        self.counts: defaultdict[str, Counter[Any]] = defaultdict(Counter)
        """Rows by value in each column of `KINDS`, for each item of a list, and by True in those of `FLAWS`.
        Also `sampling`; `verdicts`, by verifier and verdict; `duplicates`, by kind and source; `overlaps`, by
        evaluation set and length of the longest overlap in words; `contaminated`, by whether a row overlaps with any
        set, without rows that were not compared."""
        self.num_unknown: Counter[str] = Counter()
        """Rows that report no value, by column of `USAGE_COLUMNS`."""

    def add(self, batch: pa.RecordBatch) -> None:
        for name in {*MEASURES, *USAGE_COLUMNS}:
            values = batch.column(name).drop_null().cast(pa.float64())
            self.measures[name].add(values.to_numpy(zero_copy_only=False))
        # Rows without turns used nothing, since their first request failed.
        has_turns = pc.greater(batch.column("turns"), 0)
        for name in USAGE_COLUMNS:
            self.num_unknown[name] += pc.sum(pc.and_(batch.column(name).is_null(), has_turns)).as_py() or 0
        self._add_scores(batch.column("scores"), is_judged=False)
        self._add_scores(batch.column("judge"), is_judged=True)
        for name in (*KINDS, "sampling"):
            values = batch.column(name)
            items = values.flatten() if pa.types.is_list(values.type) else values
            self.counts[name].update({one["values"]: one["counts"] for one in items.value_counts().to_pylist()})
        for name in FLAWS:
            if num_flawed := len(batch) - batch.column(name).null_count:
                self.counts[name][True] += num_flawed
        self.counts["verdicts"].update(_count_rows(batch, "verifier", "verified"))
        repeated = batch.filter(batch.column("duplicate_of").is_valid())
        self.counts["duplicates"].update(_count_rows(repeated, "duplicate_kind", "duplicate_source"))
        for texts in batch.column("contamination").drop_null().to_pylist():
            self.counts["contaminated"][bool(texts)] += 1
            longest: Counter[str] = Counter()
            for overlap in map(orjson.loads, texts):
                longest[overlap["set"]] = max(overlap["ngram"], longest[overlap["set"]])
            self.counts["overlaps"].update(longest.items())

    def _add_scores(self, column: pa.Array, *, is_judged: bool) -> None:
        values_of: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        # Equal texts are parsed once: distinct scores are often few.
        for entry in column.drop_null().value_counts().to_pylist():
            value = orjson.loads(entry["values"])
            scores = value.get("scores") if is_judged else value
            for name, score in (scores or {}).items():
                if isinstance(score, int | float):
                    values_of[f"judge/{name}" if is_judged else name].append((float(score), entry["counts"]))
        for name, pairs in values_of.items():
            self.scores[name].add(np.repeat(*map(np.array, zip(*pairs, strict=True))))


def _count_rows(batch: pa.RecordBatch, *names: str) -> dict[tuple[Any, ...], int]:
    """Return rows by their values in the columns `names`, nulls included."""
    table = pa.Table.from_batches([batch.select(names)])
    grouped = table.group_by(names, use_threads=False).aggregate([([], "count_all")])
    keys = zip(*(grouped.column(name).to_pylist() for name in names), strict=True)
    return dict(zip(keys, grouped.column("count_all").to_pylist(), strict=True))


class Step(NamedTuple):
    """Rows and tokens left after one selection step."""

    name: str
    num_rows: int
    student_tokens: int
    """Rows that were not rendered count as 0."""
    completion_tokens: int
    """Tokens sampled from the teacher; rows with an unknown number count as 0."""


class FunnelCounts:
    """Counts rows by the first of `steps`, each a name and its drop reasons, that drops them, and by every reason."""

    def __init__(self, steps: Sequence[tuple[str, Sequence[str]]]) -> None:
        self._steps = steps
        self._counts: defaultdict[str, npt.NDArray[np.int64]] = defaultdict(lambda: np.zeros(3, np.int64))
        """Rows, student tokens and sampled tokens by the reasons of a row, joined by spaces."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Count rows by `drop_reasons`; raise InputError for a reason that no step has."""
        names = ("num_tokens", "completion_tokens")
        rows = pa.table({name: batch.column(name).fill_null(0) for name in names})
        rows = rows.append_column("reasons", pc.binary_join(batch.column("drop_reasons"), " "))
        sums = rows.group_by("reasons").aggregate([([], "count_all"), *((name, "sum") for name in names)])
        for counted in sums.to_pylist():
            self._counts[counted["reasons"]] += [counted["count_all"], *(counted[f"{name}_sum"] for name in names)]
        known = [reason for _, reasons in self._steps for reason in reasons]
        if unknown := {reason for reasons in self._counts for reason in reasons.split()}.difference(known):
            raise InputError(
                f"drop_reasons holds {min(unknown)!r}; expected one of {', '.join(known)}. Another version of "
                "Stillhouse wrote this dataset: build it again"
            )

    def steps(self) -> list[Step]:
        """Return the rows left before the first step, after each, and at the end."""
        left, found = dict(self._counts), []
        for name, reasons in [("distinct", ()), *self._steps, ("kept", ())]:
            left = {of_row: counts for of_row, counts in left.items() if not set(reasons) & set(of_row.split())}
            found.append(Step(name, *map(int, sum(left.values(), np.zeros(3, np.int64)))))
        return found

    def reasons(self) -> dict[str, int]:
        """Return the rows by reason, in the order of the steps; a row counts for each of its reasons."""
        totals = {
            reason: sum(int(counts[0]) for of_row, counts in self._counts.items() if reason in of_row.split())
            for _, reasons in self._steps
            for reason in reasons
        }
        return {reason: total for reason, total in totals.items() if total}


class Accuracy(NamedTuple):
    """Right and wrong answers, with an interval of their share that accounts for several trajectories of one prompt."""

    right: int
    wrong: int
    interval: ConfidenceInterval

    @property
    def share(self) -> float:
        return self.right / (self.right + self.wrong)


class VerifiedRows:
    """Collects verified rows, at 17 bytes each."""

    def __init__(self) -> None:
        self._parts = [pd.DataFrame({"prompt": np.zeros(0, np.uint64), "tag": [], "right": np.zeros(0, bool)})]

    def add(self, batch: pa.RecordBatch) -> None:
        known = batch.filter(batch.column("verified").is_valid())
        part = {
            "prompt": hashes(known.column("prompt_id")),
            "tag": known.column("tag").to_pandas().astype(object),
            "right": known.column("verified").to_numpy(zero_copy_only=False).astype(bool),
        }
        self._parts.append(pd.DataFrame(part))

    def overall(self) -> Accuracy | None:
        """Return the accuracy over all verified rows; None without any."""
        rows = pd.concat(self._parts)
        return _accuracy(rows) if len(rows) else None

    def by_tag(self) -> dict[str | None, Accuracy]:
        """Return accuracy by tag, sorted by name; None, the last, is for rows without a tag."""
        by_tag = pd.concat(self._parts).groupby("tag", dropna=False)
        return {None if pd.isna(tag) else str(tag): _accuracy(rows) for tag, rows in by_tag}


def _accuracy(rows: pd.DataFrame) -> Accuracy:
    by_prompt = rows.groupby("prompt")["right"].agg(["size", "sum"])
    kinds = by_prompt.groupby(["size", "sum"]).size().reset_index().to_numpy().tolist()
    groups = Counter({Group(size, num_right): num_prompts for size, num_right, num_prompts in kinds})
    num_right = int(rows["right"].sum())
    interval = wilson_interval(num_right / len(rows), effective_sample_size(groups))
    return Accuracy(num_right, len(rows) - num_right, interval)
