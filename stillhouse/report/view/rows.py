"""Trajectories in one form, whatever file they come from.

Three forms are known: the record of a rollout (`trajectories.jsonl`), a row of a dataset (`.parquet`), and a chat line
that `stillhouse generate -o` wrote (`.jsonl`). Only the first has the facts of each turn.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal

from stillhouse.dataset.read import original_messages, read_file
from stillhouse.dataset.totals import totals_of
from stillhouse.errors import InputError
from stillhouse.report.conversation import comparison
from stillhouse.report.view.sources import ViewSource
from stillhouse.store.records import read_jsonl, read_metadata, trajectory_from_json
from stillhouse.types import JsonObject, PromptMetadata, StopReason, Trajectory
from stillhouse.verification import examine_trajectory

Outcome = Literal["right", "wrong", "unverified", "failed"]

_LABELS: Final = ("id", "verified", "compared", "verification", "kept", "drop_reasons", "split", "num_tokens")
_OUTCOMES: Final[dict[bool | None, Outcome]] = {True: "right", False: "wrong", None: "unverified"}
_FIGURES: Final = {
    "turns": "turns",
    "tool_calls": "num_tool_calls",
    "tool_errors": "num_tool_errors",
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "usd": "cost_usd",
    "latency_s": "latency_s",
}
"""Columns of a dataset by their names on the page."""
_OF_TURN: Final = ("finish_reason", "usage", "latency_s", "model", "provider", "request_id")
_FACTS: Final = (
    *("id", "prompt_id", "sample_index", "messages", "tools", "stop_reason", "providers", "error"),
    *("expected_answer", "tag", "metadata", "drop_reasons", "split", "num_tokens", "tokens"),
)


@dataclass(frozen=True, slots=True)
class ViewRow:
    stage: str
    outcome: Outcome
    kept: bool | None
    """None if unknown."""
    score: float | None
    """Score of the row, else 1 for right and 0 for wrong; None if unknown."""
    figures: JsonObject
    """Turns, tool calls, tool errors, tokens, cost in USD, seconds of waiting; None for what is unknown."""
    body: JsonObject
    """Data of the opened trajectory: messages, tools, turns, facts, and its tokens where it has them."""


def read_view_rows(source: ViewSource) -> Iterator[ViewRow]:
    """Yield the trajectories of a source; memory holds labels and metadata alone. Raises InputError for a bad file."""
    labels = {row["id"]: row for path in source.labels for row in read_file(path, _LABELS)}
    metadata: dict[str, PromptMetadata] = {}
    for path in source.metadata:
        metadata.update(read_metadata(path))
    for part in source.parts:
        rows = read_file(part.path) if part.path.suffix == ".parquet" else read_jsonl(part.path)
        for number, row in enumerate(rows, start=1):
            try:
                if "rollout_key" in row:
                    trajectory = trajectory_from_json(row)
                    label, prompt = labels.get(trajectory.rollout_key, {}), metadata.get(trajectory.prompt_id)
                    yield _view_row(part.stage, _facts_of_record(trajectory, label, prompt), _turns(trajectory))
                else:
                    yield _view_row(part.stage, _facts_of_row(row, number), None)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise InputError(
                    f"{part.path}, row {number}: no trajectory: {type(error).__name__}: {error}; expected a rollout's "
                    f"record, a dataset's row or a chat line with messages, saw the keys {', '.join(row) or 'none'}"
                ) from error


def _view_row(stage: str, facts: JsonObject, turns: list[JsonObject] | None) -> ViewRow:
    """Return the row of a trajectory whose facts have the names of a dataset's columns; unknown ones may be absent."""
    verified, score = facts.get("verified"), facts.get("score")
    if not isinstance(score, int | float):
        score = verified
    return ViewRow(
        stage=stage,
        outcome="failed" if facts.get("stop_reason") == StopReason.ERROR else _OUTCOMES[verified],
        kept=facts.get("kept"),
        score=None if score is None else float(score),
        figures={name: facts.get(column) for name, column in _FIGURES.items()},
        body={
            **{name: facts.get(name) for name in _FACTS},
            "comparison": comparison(facts),
            "turns": turns,
            "model": facts.get("teacher"),
        },
    )


def _facts_of_record(trajectory: Trajectory, label: Mapping[str, object], prompt: PromptMetadata | None) -> JsonObject:
    return {
        **asdict(totals_of(trajectory)),
        "prompt_id": trajectory.prompt_id,
        "sample_index": trajectory.sample_index,
        "messages": trajectory.messages,
        "tools": trajectory.tools,
        "turns": len(trajectory.turns),
        "stop_reason": trajectory.stop_reason,
        "teacher": trajectory.model,
        "error": trajectory.error,
        "expected_answer": prompt.expected_answer if prompt else None,
        "tag": prompt.tag if prompt else None,
        "metadata": prompt.metadata if prompt else None,
        **(label or examine_trajectory(trajectory, prompt).columns),
        "id": trajectory.rollout_key,
    }


def _turns(trajectory: Trajectory) -> list[JsonObject]:
    """Return facts of each turn without token ids and log-probabilities."""
    return [
        {
            **{name: getattr(turn, name) for name in _OF_TURN},
            "usd": turn.cost_usd,
            "tool_errors": turn.num_tool_errors,
        }
        for turn in trajectory.turns
    ]


def _facts_of_row(row: JsonObject, number: int) -> JsonObject:
    messages = row["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise TypeError("messages is no list of objects")
    # A chat line keeps in its metadata what a dataset's row has in columns.
    extra = row.get("metadata") if "stop_reason" not in row else None
    facts = {**extra, **row} if isinstance(extra, dict) else row
    return {
        "turns": sum(message.get("role") == "assistant" for message in messages),
        "num_tool_calls": sum(len(message.get("tool_calls") or ()) for message in messages),
        **facts,
        "id": facts.get("id") or f"row-{number}",
        "messages": original_messages(row) if "arguments" in row else messages,
        "tools": row.get("tools") or [],
        "providers": facts.get("providers") or [],
        "metadata": row.get("metadata"),
    }
