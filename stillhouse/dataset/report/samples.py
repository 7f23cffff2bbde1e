"""Sample rows of the page: kept ones, dropped ones, duplicates, overlaps with evaluation sets, and how each is shown.

The rows with the smallest hashes of their ids are chosen, so that neither order nor number of rows changes the choice
among those that stay. Memory holds 16 bytes a row.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.dataset.read import iter_columns, parsed, rows_at
from stillhouse.dataset.report.figures import hashes
from stillhouse.dataset.schema import COLUMNS, DATASET_FILES, KEPT_FILES
from stillhouse.report.conversation import SampleTrajectory, comparison, cut
from stillhouse.report.format import count, decimal, dollars, metric
from stillhouse.types import JsonObject

NUM_SAMPLES: Final = 20
NUM_EXAMPLES: Final = 10
_MAX_CHARS: Final = 300
_SHOWN_COLUMNS: Final = tuple(
    column.name for column in COLUMNS if column.name not in ("tools", "arguments", "request_ids")
)


class SampleRows(NamedTuple):
    """Rows with parsed JSON columns."""

    kept: list[JsonObject]
    dropped: list[JsonObject]
    duplicates: list[tuple[JsonObject, JsonObject | None]]
    """Each with the row it repeats; None if that is in an earlier dataset."""
    contaminated: list[JsonObject]


def draw_samples(folder: Path) -> SampleRows:
    """Draw sample rows of the dataset in `folder`: one pass over the ids, then the chosen rows alone are read."""
    rows = pd.concat(_places(folder), ignore_index=True).sort_values("rank", kind="stable")
    is_kept = rows["file"] < len(KEPT_FILES)
    repeats = _read(folder, rows[rows["repeats"]][:NUM_EXAMPLES])
    named = pa.array([row["duplicate_of"] for row in repeats if not row["duplicate_source"]], pa.string())
    originals = {row["id"]: row for row in _read(folder, rows[rows["rank"].isin(hashes(named))])}
    return SampleRows(
        kept=_read(folder, rows[is_kept][:NUM_SAMPLES]),
        dropped=_read(folder, rows[~is_kept][:NUM_SAMPLES]),
        duplicates=[(row, None if row["duplicate_source"] else originals.get(row["duplicate_of"])) for row in repeats],
        contaminated=_read(folder, rows[rows["overlaps"]][:NUM_EXAMPLES]),
    )


def _places(folder: Path) -> Iterator[pd.DataFrame]:
    """Yield the hash of each row's id, its file and number there, and whether it repeats or overlaps with another."""
    for file, name in enumerate(DATASET_FILES):
        start = 0
        for batch in iter_columns(folder / name, ("id", "duplicate_of", "contamination")):
            overlaps = pc.greater(pc.list_value_length(batch.column("contamination")), 0).fill_null(False)
            yield pd.DataFrame(
                {
                    "rank": hashes(batch.column("id")),
                    "file": np.int8(file),
                    "row": np.arange(start, start + len(batch), dtype=np.int32),
                    "repeats": batch.column("duplicate_of").is_valid().to_numpy(zero_copy_only=False),
                    "overlaps": overlaps.to_numpy(zero_copy_only=False),
                }
            )
            start += len(batch)


def _read(folder: Path, places: pd.DataFrame) -> list[JsonObject]:
    """Return the rows at `places`, in their order, JSON parsed by Python's parser: orjson refuses lone surrogates."""
    rows: dict[tuple[int, int], JsonObject] = {}
    for file, name in enumerate(DATASET_FILES):
        numbers = sorted(places.loc[places["file"] == file, "row"].tolist())
        read = rows_at(folder / name, numbers, _SHOWN_COLUMNS)
        rows |= {(file, number): parsed(row, json.loads) for number, row in zip(numbers, read, strict=True)}
    return [rows[place] for place in zip(places["file"], places["row"], strict=True)]


def view_row(row: JsonObject) -> JsonObject:
    """Return what the page shows of a row whose JSON columns are parsed: plain text, escaped by the template."""
    facts = ((name, read(row)) for name, read in _FACTS)
    return {
        "id": row["id"],
        "tag": cut(row["tag"] or "", 60),
        "reasons": [reason.replace("_", " ") for reason in row["drop_reasons"] or ()],
        "facts": [(name, cut(text, _MAX_CHARS)) for name, text in facts if text],
        "repeats": _repeats(row),
        "overlaps": cut(_overlaps(row), _MAX_CHARS),
        "trajectory": SampleTrajectory(
            messages=row["messages"], stop_reason=row["stop_reason"], verified=row["verified"], stage="teacher"
        ),
    }


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
