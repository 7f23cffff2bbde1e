"""What was found in rows: categories, verdicts by verifier, duplicates, overlaps with evaluation sets."""

from collections import Counter
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

CATEGORIES: Final = ("tag", "language", "teacher", "sampling", "stop_reason")
LISTS: Final = ("tool_names", "providers", "private_data")
FLAWS: Final = ("refusal", "format_problem", "template_problem")
"""Columns of text that are null where there is nothing amiss."""


class Split(NamedTuple):
    """Rows of one kind."""

    kept: int
    dropped: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.kept + self.dropped


class Counts:
    """Rows by kind, kept and dropped."""

    def __init__(self) -> None:
        self._counters: dict[bool, Counter[Any]] = {True: Counter(), False: Counter()}

    def add(self, counter: Counter[Any], kept: bool) -> None:
        """Adds rows, all of them kept or all dropped."""
        self._counters[kept].update(+counter)

    def rows(self) -> list[tuple[Any, Split]]:
        """Kinds and their rows, the most frequent first; equal ones in the order of their names."""
        kept, dropped = self._counters[True], self._counters[False]
        rows = [(kind, Split(kept[kind], dropped[kind])) for kind in {**kept, **dropped}]
        return sorted(rows, key=lambda row: (-row[1].total, row[0] is None, str(row[0])))

    @property
    def total(self) -> Split:
        """Over all kinds."""
        return Split(self._counters[True].total(), self._counters[False].total())


class Findings:
    """Counts of kinds of rows."""

    def __init__(self) -> None:
        self.categories = {name: Counts() for name in (*CATEGORIES, *LISTS)}
        """A category of `LISTS` may count a row several times."""
        self.flaws = {name: Counts() for name in FLAWS}
        """Rows that have the flaw, under the one kind True."""
        self.verdicts = Counts()
        """By verifier and verdict."""
        self.duplicates = Counts()
        """By kind and source."""
        self.overlaps = Counts()
        """By evaluation set and length in words of the longest overlap."""
        self.contaminated = Counts()
        """By whether a row overlaps with any set; rows that were not compared are not there."""

    def add(self, batch: pa.RecordBatch, kept: bool) -> None:
        """Counts the rows of `batch`, all of them kept or all dropped."""
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
            for found in map(orjson.loads, texts):
                longest[found["set"]] = max(found["ngram"], longest.get(found["set"], 0))
            self.overlaps.add(Counter(longest.items()), kept)


def _count_rows(batch: pa.RecordBatch, *names: str) -> Counter[tuple[Any, ...]]:
    """Rows by their values in `names`, null among them."""
    table = pa.Table.from_batches([batch.select(names)])
    grouped = table.group_by(names, use_threads=False).aggregate([([], "count_all")])
    keys = zip(*(grouped.column(name).to_pylist() for name in names), strict=True)
    return Counter(dict(zip(keys, grouped.column("count_all").to_pylist(), strict=True)))


def _count_values(values: pa.Array) -> Counter[Any]:
    return Counter({entry["values"]: entry["counts"] for entry in values.value_counts().to_pylist()})
