"""A row as a person reads it: what it is about, what was found, the conversation."""

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
    """Name and value of what is known of the row."""
    repeats: str
    """Which row this one repeats; empty if none."""
    overlaps: str
    """What it shares with evaluation sets; empty if nothing."""
    trajectory: TrajectoryView


def view_row(row: JsonObject) -> RowView:
    """What the page shows of a row with its JSON columns as objects."""
    known = ((name, tell(row)) for name, tell in _FACTS)
    return RowView(
        id=row["id"],
        tag=cut(row["tag"] or "", 60),
        reasons=[reason.replace("_", " ") for reason in row["drop_reasons"] or ()],
        facts=[(name, cut(text, _MAX_CHARS)) for name, text in known if text],
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


def _verification(row: JsonObject) -> str:
    return ", ".join(text for text in (row["verifier"], row["verification"]) if text)


def _tokens(row: JsonObject) -> str:
    if row["num_tokens"] is None:
        return ""
    return f"{count(row['num_tokens'])}, {count(row['num_supervised_tokens'])} of them supervised"


def _sampled(row: JsonObject) -> str:
    known = [f"{count(row['completion_tokens'])} tokens"] if row["completion_tokens"] is not None else []
    known += [dollars(row["cost_usd"])] if row["cost_usd"] is not None else []
    return ", ".join([*known, f"{decimal(row['latency_s'])} s"] if row["latency_s"] is not None else known)


def _scores(row: JsonObject) -> str:
    judged = {f"judge/{name}": score for name, score in ((row["judge"] or {}).get("scores") or {}).items()}
    scores = {**(row["scores"] or {}), **judged}
    return ", ".join(f"{name} {_number(score)}" for name, score in sorted(scores.items()))


def _number(value: Any) -> str:
    return metric(value) if isinstance(value, int | float) else str(value)


def _judge(row: JsonObject) -> str:
    return str((row["judge"] or {}).get("explanation") or "")


def _repeats(row: JsonObject) -> str:
    if row["duplicate_of"] is None:
        return ""
    source = "" if row["duplicate_source"] is None else f" of {row['duplicate_source']}"
    similarity = row["duplicate_similarity"]
    alike = "" if similarity is None else f", similarity {similarity:.2f}"
    return f"row {row['duplicate_of'][:12]}{source} ({row['duplicate_kind']}{alike})"


def _overlaps(row: JsonObject) -> str:
    return "; ".join(
        f"{found['set']} row {found['row']}, {found['part']}: \u201c{found['text']}\u201d"
        for found in row["contamination"] or ()
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
    ("verified by", _verification),
    ("student tokens", _tokens),
    ("sampled", _sampled),
    ("scores", _scores),
    ("judge", _judge),
    ("repeats", _repeats),
    ("overlaps", _overlaps),
    ("refusal", _text("refusal")),
    ("format", _text("format_problem")),
    ("template", _text("template_problem")),
    ("private data", _listed("private_data")),
    ("objections", _listed("objections")),
)
