"""Sample rows of the page: kept ones, dropped ones, duplicates, overlaps with evaluation sets, and how each is shown.

The rows with the smallest hashes of their ids are chosen, so that neither order nor number of rows changes the choice
among those that stay.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.dataset.read import iter_columns, parsed, rows_at
from stillhouse.dataset.report.figures import hashes
from stillhouse.dataset.report.summary import KEPT_FILES, REJECTED_FILE
from stillhouse.dataset.schema import COLUMNS
from stillhouse.report.conversation import SampleTrajectory, comparison, cut
from stillhouse.report.format import count, decimal, dollars, metric
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
            for name, mask in (("duplicates", _is_repeat(batch)), ("contaminated", _is_contaminated(batch))):
                chosen[name].add(ranks[mask], rows[mask], file)
    row_of = _read(folder, {place for lowest in chosen.values() for place in lowest.places})
    samples = {name: [row_of[place] for place in lowest.places] for name, lowest in chosen.items()}
    originals = _read_ids(folder, {row["duplicate_of"] for row in samples["duplicates"] if not row["duplicate_source"]})
    return SampleRows(
        kept=samples["kept"],
        dropped=samples["dropped"],
        duplicates=[Duplicate(row, originals.get(row["duplicate_of"])) for row in samples["duplicates"]],
        contaminated=samples["contaminated"],
    )


def _is_repeat(batch: pa.RecordBatch) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    return batch.column("duplicate_of").is_valid().to_numpy(zero_copy_only=False)


def _is_contaminated(batch: pa.RecordBatch) -> "np.ndarray[Any, np.dtype[np.bool_]]":
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
    """The rows at `places`, JSON columns parsed by Python's parser, since orjson refuses lone surrogates."""
    by_file: defaultdict[str, list[int]] = defaultdict(list)
    for place in sorted(places):
        by_file[place.file].append(place.row)
    return {
        _Place(name, number): parsed(row, json.loads)
        for name, numbers in by_file.items()
        for number, row in zip(numbers, rows_at(folder / name, numbers, _SHOWN_COLUMNS), strict=True)
    }


_MAX_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class RowView:
    """One row; plain text throughout, escaped by the template."""

    id: str
    tag: str
    reasons: list[str]
    facts: list[tuple[str, str]]
    """Names and values."""
    repeats: str
    """The row that this one duplicates; empty if none."""
    overlaps: str
    """Overlaps with evaluation sets; empty if none."""
    trajectory: SampleTrajectory


def view_row(row: JsonObject) -> RowView:
    """View of a row whose JSON columns are parsed."""
    facts = ((name, read(row)) for name, read in _FACTS)
    return RowView(
        id=row["id"],
        tag=cut(row["tag"] or "", 60),
        reasons=[reason.replace("_", " ") for reason in row["drop_reasons"] or ()],
        facts=[(name, cut(text, _MAX_CHARS)) for name, text in facts if text],
        repeats=_repeats(row),
        overlaps=cut(_overlaps(row), _MAX_CHARS),
        trajectory=SampleTrajectory(
            messages=row["messages"], stop_reason=row["stop_reason"], verified=row["verified"], stage="teacher"
        ),
    )


def _text(column: str) -> Callable[[JsonObject], str]:
    return lambda row: "" if row[column] is None else str(row[column])


def _tokens(row: JsonObject) -> str:
    if row["num_tokens"] is None:
        return ""
    return f"{count(row['num_tokens'])}, {count(row['num_supervised_tokens'])} of them supervised"


def _sampled(row: JsonObject) -> str:
    parts = [f"{count(row['completion_tokens'])} tokens"] if row["completion_tokens"] is not None else []
    parts += [dollars(row["cost_usd"])] if row["cost_usd"] is not None else []
    return ", ".join([*parts, f"{decimal(row['latency_s'])} s"] if row["latency_s"] is not None else parts)


def _scores(row: JsonObject) -> str:
    judged = {f"judge/{name}": score for name, score in ((row["judge"] or {}).get("scores") or {}).items()}
    scores = {**(row["scores"] or {}), **judged}
    return ", ".join(
        f"{name} {metric(score) if isinstance(score, int | float) else score}" for name, score in sorted(scores.items())
    )


def _repeats(row: JsonObject) -> str:
    if row["duplicate_of"] is None:
        return ""
    source = "" if row["duplicate_source"] is None else f" of {row['duplicate_source']}"
    similarity = row["duplicate_similarity"]
    similarity_text = "" if similarity is None else f", similarity {similarity:.2f}"
    return f"row {row['duplicate_of'][:12]}{source} ({row['duplicate_kind']}{similarity_text})"


def _overlaps(row: JsonObject) -> str:
    return "; ".join(
        f"{overlap['set']} row {overlap['row']}, {overlap['part']}: \u201c{overlap['text']}\u201d"
        for overlap in row["contamination"] or ()
    )


def _listed(column: str) -> Callable[[JsonObject], str]:
    return lambda row: ", ".join(map(str, row[column] or ()))


def _error(row: JsonObject) -> str:
    error = row["error"] or {}
    return ": ".join(str(error[key]) for key in ("kind", "message") if key in error)


_FACTS: Final[tuple[tuple[str, Callable[[JsonObject], str]], ...]] = (
    ("row", lambda row: row["id"][:12]),
    ("error", _error),
    ("expected answer", _text("expected_answer")),
    ("verified by", _text("verifier")),
    ("verdict", comparison),
    ("student tokens", _tokens),
    ("sampled", _sampled),
    ("scores", _scores),
    ("judge", lambda row: str((row["judge"] or {}).get("explanation") or "")),
    ("repeats", _repeats),
    ("overlaps", _overlaps),
    ("refusal", _text("refusal")),
    ("format", _text("format_problem")),
    ("template", _text("template_problem")),
    ("private data", _listed("private_data")),
    ("objections", _listed("objections")),
)
