"""Sample rows: kept ones, dropped ones, duplicates, overlaps with evaluation sets.

The rows with the smallest hashes of their ids are chosen, so that neither order nor number of rows changes the choice
among those that stay.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.dataset.read import iter_columns, parsed, rows_at
from stillhouse.dataset.report.columns import hashes
from stillhouse.dataset.report.summary import KEPT_FILES, REJECTED_FILE
from stillhouse.dataset.schema import COLUMNS
from stillhouse.types import JsonObject

NUM_SAMPLES: Final = 20
NUM_EXAMPLES: Final = 10
_FILES: Final = (*KEPT_FILES, REJECTED_FILE)
_ID_COLUMNS: Final = ("id", "duplicate_of", "duplicate_source", "contamination")
_SHOWN_COLUMNS: Final = tuple(
    column.name for column in COLUMNS if column.name not in ("tools", "arguments", "request_ids")
)


class _Place(NamedTuple):
    file: str
    row: int


class Duplicate(NamedTuple):
    """A row and the row it duplicates; None if that is in an earlier dataset."""

    row: JsonObject
    original: JsonObject | None


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Rows with parsed JSON columns."""

    kept: list[JsonObject]
    dropped: list[JsonObject]
    duplicates: list[Duplicate]
    contaminated: list[JsonObject]


class _Lowest:
    """Locations of the rows with the smallest hashes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: list[tuple[int, _Place]] = []

    def add(self, ranks: "np.ndarray[Any, np.dtype[np.uint64]]", rows: "np.ndarray[Any, Any]", file: str) -> None:
        """Adds rows of a file: `ranks` are their hashes, `rows` their numbers."""
        order = np.argsort(ranks, kind="stable")[: self._most]
        candidates = [(int(ranks[at]), _Place(file, int(rows[at]))) for at in order]
        self._entries = sorted([*self._entries, *candidates])[: self._most]

    @property
    def places(self) -> list[_Place]:
        return [place for _, place in self._entries]


def draw_samples(folder: Path) -> SampleRows:
    """Draws sample rows of the dataset in `folder`: two passes over the ids, then reads only the chosen rows.

    Raises:
        InputError: a file is missing, damaged or not a dataset of Stillhouse.
    """
    chosen = {name: _Lowest(NUM_SAMPLES) for name in ("kept", "dropped")}
    chosen |= {name: _Lowest(NUM_EXAMPLES) for name in ("duplicates", "contaminated")}
    for file in _FILES:
        start = 0
        for batch in iter_columns(folder / file, _ID_COLUMNS):
            ranks, rows = hashes(batch.column("id")), np.arange(start, start + len(batch))
            start += len(batch)
            chosen["dropped" if file == REJECTED_FILE else "kept"].add(ranks, rows, file)
            for name, mask in (("duplicates", _repeats(batch)), ("contaminated", _overlaps(batch))):
                chosen[name].add(ranks[mask], rows[mask], file)
    rows_at = _read(folder, {place for lowest in chosen.values() for place in lowest.places})
    samples = {name: [rows_at[place] for place in lowest.places] for name, lowest in chosen.items()}
    originals = _read_ids(folder, {row["duplicate_of"] for row in samples["duplicates"] if not row["duplicate_source"]})
    return SampleRows(
        kept=samples["kept"],
        dropped=samples["dropped"],
        duplicates=[Duplicate(row, originals.get(row["duplicate_of"])) for row in samples["duplicates"]],
        contaminated=samples["contaminated"],
    )


def _repeats(batch: pa.RecordBatch) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    return batch.column("duplicate_of").is_valid().to_numpy(zero_copy_only=False)


def _overlaps(batch: pa.RecordBatch) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    lengths = pc.list_value_length(batch.column("contamination")).fill_null(0)
    return lengths.to_numpy(zero_copy_only=False) > 0


def _read_ids(folder: Path, ids: set[str]) -> Mapping[str, JsonObject]:
    """The rows with these ids that the dataset holds."""
    places = set()
    for file in _FILES if ids else ():
        start = 0
        for batch in iter_columns(folder / file, ("id",)):
            hits = pc.is_in(batch.column("id"), value_set=pa.array(sorted(ids)))
            places |= {_Place(file, start + at) for at in pc.indices_nonzero(hits).to_pylist()}
            start += len(batch)
    return {row["id"]: row for row in _read(folder, places).values()}


def _read(folder: Path, places: Iterable[_Place]) -> Mapping[_Place, JsonObject]:
    """The rows at `places`, JSON columns parsed."""
    by_file: defaultdict[str, list[int]] = defaultdict(list)
    for place in sorted(places):
        by_file[place.file].append(place.row)
    return {
        _Place(name, number): parsed(row)
        for name, numbers in by_file.items()
        for number, row in zip(numbers, rows_at(folder / name, numbers, _SHOWN_COLUMNS), strict=True)
    }
