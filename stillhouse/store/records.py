"""JSON lines of the shared types, as artifacts hold them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from stillhouse.errors import InputError
from stillhouse.store import exact_json
from stillhouse.types import JsonObject, Prompt, PromptMetadata, StopReason, Trajectory, Turn


def write_jsonl(path: Path, rows: Iterable[Any]) -> int:
    """Write dataclasses or JSON objects, one a line, with fsync, and return their number. Not atomic."""
    num_rows = 0
    with path.open("wb") as file:
        for row in rows:
            file.write(exact_json.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
            num_rows += 1
        file.flush()
        os.fsync(file.fileno())
    return num_rows


def read_jsonl(path: Path) -> Iterator[JsonObject]:
    """Yield the objects of a JSON lines file; raise InputError, which names file and line, if one is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = exact_json.loads(line)
            except orjson.JSONDecodeError as error:
                raise InputError(f"{path}, line {number}: not valid JSON: {error}; saw {line[:80]!r}") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number}: expected a JSON object, saw {line[:80]!r}")
            yield row


def read_prompts(path: Path) -> Iterator[Prompt]:
    """Yield prompts written by `write_jsonl`."""
    return (Prompt(**row) for row in read_jsonl(path))


def read_metadata_rows(path: Path) -> Iterator[PromptMetadata]:
    """Yield metadata written by `write_jsonl`, in order."""
    return (PromptMetadata(**row) for row in read_jsonl(path))


def read_metadata(path: Path) -> dict[str, PromptMetadata]:
    """Return metadata written by `write_jsonl`, by prompt id."""
    return {row.prompt_id: row for row in read_metadata_rows(path)}


def trajectory_from_json(row: JsonObject) -> Trajectory:
    """Return the trajectory in a row; messages and tools stay exactly as they are."""
    turns = [Turn(**turn) for turn in row["turns"]]
    return Trajectory(**{**row, "turns": turns, "stop_reason": StopReason(row["stop_reason"])})


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield trajectories written by `write_jsonl`."""
    return (trajectory_from_json(row) for row in read_jsonl(path))
