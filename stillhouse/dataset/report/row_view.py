"""A row of a dataset as the page shows it: labels, facts, conversation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from stillhouse.report import SampleTrajectory
from stillhouse.report.conversation import TrajectoryView, cut, view
from stillhouse.report.format import count, decimal, dollars, metric
from stillhouse.types import JsonObject

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
    trajectory: TrajectoryView


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
        trajectory=view(
            SampleTrajectory(
                messages=row["messages"], stop_reason=row["stop_reason"], verified=row["verified"], stage="teacher"
            )
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
    return ", ".join(f"{name} {_number(score)}" for name, score in sorted(scores.items()))


def _number(value: Any) -> str:
    return metric(value) if isinstance(value, int | float) else str(value)


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
    ("verified by", lambda row: ", ".join(filter(None, (row["verifier"], row["verification"])))),
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
