"""Trajectories in one form, whatever file they come from.

Three forms are known: the record of a rollout (`trajectories.jsonl`), a row of a dataset (`.parquet`), and a chat line
that `stillhouse generate -o` wrote (`.jsonl`). Only the first has the facts of each turn.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from stillhouse.dataset.read import original_messages, read_file
from stillhouse.dataset.totals import totals_of
from stillhouse.errors import InputError
from stillhouse.report.view.sources import ViewSource
from stillhouse.store.records import read_jsonl, read_metadata, trajectory_from_json
from stillhouse.types import JsonObject, PromptMetadata, StopReason, Trajectory, Turn
from stillhouse.verification import verify_trajectory

Outcome = Literal["right", "wrong", "unverified", "failed"]

_LABELS: Final = ("id", "verified", "kept", "drop_reasons", "split", "num_tokens")
_NO_ROW: Final[JsonObject] = {}
_OUTCOMES: Final[dict[bool | None, Outcome]] = {True: "right", False: "wrong", None: "unverified"}


@dataclass(frozen=True, slots=True)
class ViewRow:
    """One trajectory of the page."""

    stage: str
    outcome: Outcome
    kept: bool | None
    """None if unknown."""
    score: float | None
    """Score of the row, else 1 for right and 0 for wrong; None if unknown."""
    figures: JsonObject
    """Turns, tool calls, tool errors, tokens, cost in USD, seconds of waiting; None for what is unknown."""
    body: JsonObject
    """Data of the opened trajectory: messages, tools, turns, facts."""


def read_view_rows(source: ViewSource) -> Iterator[ViewRow]:
    """Yields the trajectories of a source; only labels and expected answers are held in memory.

    Raises:
        InputError: a file cannot be read or a row holds no messages.
    """
    labels = {row["id"]: row for path in source.labels for row in read_file(path, _LABELS)}
    metadata: dict[str, PromptMetadata] = {}
    for path in source.metadata:
        metadata.update(read_metadata(path))
    for part in source.parts:
        rows = read_file(part.path) if part.path.suffix == ".parquet" else read_jsonl(part.path)
        for number, row in enumerate(rows, start=1):
            try:
                yield _view_row(row, part.stage, labels, metadata, number)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise InputError(
                    f"{part.path}, row {number}: no trajectory: {type(error).__name__}: {error}; expected a rollout's "
                    f"record, a dataset's row or a chat line with messages, saw the keys {', '.join(row) or 'none'}"
                ) from error


def _view_row(
    row: JsonObject, stage: str, labels: Mapping[str, JsonObject], metadata: Mapping[str, PromptMetadata], number: int
) -> ViewRow:
    if "rollout_key" in row:
        trajectory = trajectory_from_json(row)
        label = labels.get(trajectory.rollout_key, _NO_ROW)
        return _of_trajectory(trajectory, stage, label, metadata.get(trajectory.prompt_id))
    return _of_row(row, stage, number)


def _of_trajectory(trajectory: Trajectory, stage: str, label: JsonObject, prompt: PromptMetadata | None) -> ViewRow:
    verified = label["verified"] if label else verify_trajectory(trajectory, prompt)
    totals = totals_of(trajectory)
    failed = trajectory.stop_reason is StopReason.ERROR
    body = {
        "id": trajectory.rollout_key,
        "prompt_id": trajectory.prompt_id,
        "sample_index": trajectory.sample_index,
        "messages": trajectory.messages,
        "tools": trajectory.tools,
        "turns": [_turn(turn) for turn in trajectory.turns],
        "stop_reason": trajectory.stop_reason,
        "model": trajectory.model,
        "providers": totals.providers,
        "error": trajectory.error,
        "expected_answer": prompt.expected_answer if prompt else None,
        "tag": prompt.tag if prompt else None,
        "metadata": prompt.metadata if prompt else None,
        "drop_reasons": label.get("drop_reasons"),
        "split": label.get("split"),
        "num_tokens": label.get("num_tokens"),
    }
    return ViewRow(
        stage=stage,
        outcome="failed" if failed else _OUTCOMES[verified],
        kept=label.get("kept"),
        score=_score(_NO_ROW, verified),
        figures={
            "turns": len(trajectory.turns),
            "tool_calls": totals.num_tool_calls,
            "tool_errors": totals.num_tool_errors,
            "prompt_tokens": totals.prompt_tokens,
            "completion_tokens": totals.completion_tokens,
            "reasoning_tokens": totals.reasoning_tokens,
            "usd": totals.cost_usd,
            "latency_s": totals.latency_s,
        },
        body=body,
    )


def _turn(turn: Turn) -> JsonObject:
    """Facts of a turn without token ids and log-probabilities."""
    return {
        "finish_reason": turn.finish_reason,
        "usage": turn.usage,
        "latency_s": turn.latency_s,
        "model": turn.model,
        "provider": turn.provider,
        "request_id": turn.request_id,
        "usd": turn.cost_usd,
        "tool_errors": turn.num_tool_errors,
    }


def _of_row(row: JsonObject, stage: str, number: int) -> ViewRow:
    messages = row["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise TypeError("messages is no list of objects")
    # A chat line keeps in its metadata what a dataset's row has in columns.
    extra = row.get("metadata")
    known = row if "stop_reason" in row or not isinstance(extra, dict) else {**extra, **row}
    verified = known.get("verified")
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return ViewRow(
        stage=stage,
        outcome="failed" if known.get("stop_reason") == StopReason.ERROR else _OUTCOMES[verified],
        kept=known.get("kept"),
        score=_score(known, verified),
        figures={
            "turns": known.get("turns", sum(message.get("role") == "assistant" for message in messages)),
            "tool_calls": known.get("num_tool_calls", len(calls)),
            "tool_errors": known.get("num_tool_errors"),
            "prompt_tokens": known.get("prompt_tokens"),
            "completion_tokens": known.get("completion_tokens"),
            "reasoning_tokens": known.get("reasoning_tokens"),
            "usd": known.get("cost_usd"),
            "latency_s": known.get("latency_s"),
        },
        body={
            "id": known.get("id") or f"row-{number}",
            "prompt_id": known.get("prompt_id"),
            "sample_index": known.get("sample_index"),
            "messages": original_messages(row) if "arguments" in row else messages,
            "tools": row.get("tools") or [],
            "turns": None,
            "stop_reason": known.get("stop_reason"),
            "model": known.get("teacher"),
            "providers": known.get("providers") or [],
            "error": known.get("error"),
            "expected_answer": known.get("expected_answer"),
            "tag": known.get("tag"),
            "metadata": row.get("metadata"),
            "drop_reasons": known.get("drop_reasons"),
            "split": known.get("split"),
            "num_tokens": known.get("num_tokens"),
        },
    )


def _score(row: JsonObject, verified: bool | None) -> float | None:
    score = row.get("score")
    if isinstance(score, int | float):
        return float(score)
    return None if verified is None else float(verified)
