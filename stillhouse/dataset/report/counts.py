"""Counts over rows: categories and flaws, rows left by each selection step, tokens and money."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.dataset.report.columns import numbers
from stillhouse.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Step(NamedTuple):
    """Rows and tokens left after one selection step."""

    name: str
    num_rows: int
    student_tokens: int
    """Rows that were not rendered count as 0."""
    completion_tokens: int
    """Tokens sampled from the teacher; rows with an unknown number count as 0."""


class FunnelCounts:
    """Counts rows by the first step that drops them, and by every reason they have.

    Args:
        steps: names of the steps in order, each with its drop reasons.
    """

    def __init__(self, steps: Sequence[tuple[str, Sequence[str]]]) -> None:
        self._names = [name for name, _ in steps]
        self._reasons = [str(reason) for _, reasons in steps for reason in reasons]
        self._step_of_reason = np.array([place for place, (_, reasons) in enumerate(steps) for _ in reasons], dtype=int)
        self._reason_counts = np.zeros(len(self._reasons), dtype=np.int64)
        # The last column counts rows that no step drops.
        self._dropped = np.zeros((3, len(steps) + 1))

    def add(self, batch: pa.RecordBatch) -> None:
        """Counts rows by `drop_reasons`.

        Raises:
            InputError: a reason that no step has.
        """
        reasons = batch.column("drop_reasons")
        codes = self._codes(reasons)
        self._reason_counts += np.bincount(codes, minlength=len(self._reasons))
        first = np.full(len(batch), len(self._names))
        np.minimum.at(first, pc.list_parent_indices(reasons).to_numpy(), self._step_of_reason[codes])
        for row, weights in enumerate((None, _tokens(batch, "num_tokens"), _tokens(batch, "completion_tokens"))):
            self._dropped[row] += np.bincount(first, weights=weights, minlength=len(self._names) + 1)

    def _codes(self, reasons: pa.Array) -> "NDArray[np.int64]":
        named = reasons.flatten()
        codes = pc.index_in(named, value_set=pa.array(self._reasons, pa.string()))
        if codes.null_count:
            unknown = named.filter(codes.is_null())[0].as_py()
            raise InputError(
                f"drop_reasons holds {unknown!r}; expected one of {', '.join(self._reasons)}. Another version of "
                "Stillhouse wrote this dataset: build it again"
            )
        return codes.to_numpy().astype(np.int64)

    def steps(self) -> list[Step]:
        """Rows left before the first step, after each, and at the end."""
        start = self._dropped.sum(axis=1)
        left = start[:, None] - np.cumsum(self._dropped[:, :-1], axis=1)
        after = [Step(name, *map(int, left[:, place])) for place, name in enumerate(self._names)]
        return [Step("distinct", *map(int, start)), *after, Step("kept", *map(int, self._dropped[:, -1]))]

    def reasons(self) -> dict[str, int]:
        """Rows by reason, in the order of the steps; a row counts for each of its reasons."""
        return {name: int(count) for name, count in zip(self._reasons, self._reason_counts, strict=True) if count}


def _tokens(batch: pa.RecordBatch, name: str) -> "NDArray[np.float64]":
    return batch.column(name).fill_null(0).to_numpy().astype(np.float64)


CATEGORIES: Final = ("tag", "language", "teacher", "sampling", "stop_reason")
LISTS: Final = ("tool_names", "providers", "private_data")
FLAWS: Final = ("refusal", "format_problem", "template_problem")
"""Text columns that are null for rows without the flaw."""


class Split(NamedTuple):
    """Rows of one category, kept and dropped."""

    kept: int
    dropped: int

    @property
    def total(self) -> int:
        """Kept and dropped rows together."""
        return self.kept + self.dropped


class Counts:
    """Rows by category, kept and dropped."""

    def __init__(self) -> None:
        self._counters: dict[bool, Counter[Any]] = {True: Counter(), False: Counter()}

    def add(self, counter: Counter[Any], kept: bool) -> None:
        """Adds counts of rows that are all kept or all dropped."""
        self._counters[kept].update(+counter)

    def rows(self) -> list[tuple[Any, Split]]:
        """Categories and their rows, most frequent first, ties by name."""
        kept, dropped = self._counters[True], self._counters[False]
        rows = [(kind, Split(kept[kind], dropped[kind])) for kind in {**kept, **dropped}]
        return sorted(rows, key=lambda row: (-row[1].total, row[0] is None, str(row[0])))

    @property
    def total(self) -> Split:
        """Sum over all categories."""
        return Split(self._counters[True].total(), self._counters[False].total())


class Findings:
    """Counts of rows by category, flaw, verdict, duplicate and overlap."""

    def __init__(self) -> None:
        self.categories = {name: Counts() for name in (*CATEGORIES, *LISTS)}
        """For columns of `LISTS` a row may count several times."""
        self.flaws = {name: Counts() for name in FLAWS}
        """Rows with the flaw, under the key True."""
        self.verdicts = Counts()
        """By verifier and verdict."""
        self.duplicates = Counts()
        """By kind and source."""
        self.overlaps = Counts()
        """By evaluation set and length in words of the longest overlap."""
        self.contaminated = Counts()
        """By whether a row overlaps with any set; rows that were not compared are not counted."""

    def add(self, batch: pa.RecordBatch, kept: bool) -> None:
        """Counts the rows of `batch`, which are all kept or all dropped."""
        for name in CATEGORIES:
            self.categories[name].add(Counter({key: n for (key,), n in _count_rows(batch, name).items()}), kept)
        for name in LISTS:
            self.categories[name].add(_count_values(batch.column(name).flatten()), kept)
        for name, counts in self.flaws.items():
            counts.add(Counter({True: len(batch) - batch.column(name).null_count}), kept)
        self.verdicts.add(_count_rows(batch, "verifier", "verified"), kept)
        repeated = batch.filter(batch.column("duplicate_of").is_valid())
        self.duplicates.add(_count_rows(repeated, "duplicate_kind", "duplicate_source"), kept)
        self._add_contamination(batch.column("contamination"), kept)

    def _add_contamination(self, column: pa.Array, kept: bool) -> None:
        compared = column.drop_null()
        overlapping = compared.filter(pc.greater(pc.list_value_length(compared), 0)).to_pylist()
        self.contaminated.add(Counter({True: len(overlapping), False: len(compared) - len(overlapping)}), kept)
        for texts in overlapping:
            longest: dict[str, int] = {}
            for overlap in map(orjson.loads, texts):
                longest[overlap["set"]] = max(overlap["ngram"], longest.get(overlap["set"], 0))
            self.overlaps.add(Counter(longest.items()), kept)


def _count_rows(batch: pa.RecordBatch, *names: str) -> Counter[tuple[Any, ...]]:
    """Rows by their values in the columns `names`, nulls included."""
    table = pa.Table.from_batches([batch.select(names)])
    grouped = table.group_by(names, use_threads=False).aggregate([([], "count_all")])
    keys = zip(*(grouped.column(name).to_pylist() for name in names), strict=True)
    return Counter(dict(zip(keys, grouped.column("count_all").to_pylist(), strict=True)))


def _count_values(values: pa.Array) -> Counter[Any]:
    return Counter({entry["values"]: entry["counts"] for entry in values.value_counts().to_pylist()})


USAGE_COLUMNS: Final = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens", "cost_usd")


class Total:
    """Sum over rows, and the number of rows that report no value. A sum with an unknown part is unknown, not zero."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self.num_unknown = 0

    def add(self, batch: pa.RecordBatch, column: str) -> None:
        """Adds a column. Rows without turns used nothing, since their first request failed."""
        values = batch.column(column)
        self._sums.append(math.fsum(numbers(values)))
        self.num_unknown += pc.sum(pc.and_(values.is_null(), pc.greater(batch.column("turns"), 0))).as_py() or 0

    def __add__(self, other: "Total") -> "Total":
        both = Total()
        both._sums = [*self._sums, *other._sums]
        both.num_unknown = self.num_unknown + other.num_unknown
        return both

    @property
    def known(self) -> float:
        """Sum of the reported values, a lower bound."""
        return math.fsum(self._sums)

    @property
    def value(self) -> float | None:
        """The sum; None if a row reports no value."""
        return None if self.num_unknown else self.known


class Usage:
    """Totals of `USAGE_COLUMNS`."""

    def __init__(self, totals: Iterable[Total] = ()) -> None:
        self.totals = dict(zip(USAGE_COLUMNS, totals, strict=True)) if totals else {n: Total() for n in USAGE_COLUMNS}

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the rows of `batch`."""
        for name, total in self.totals.items():
            total.add(batch, name)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage([total + other.totals[name] for name, total in self.totals.items()])

    def __getitem__(self, name: str) -> float | None:
        """Total of a column; None if unknown. Tokens are integers."""
        value = self.totals[name].value
        return value if value is None or name == "cost_usd" else round(value)
