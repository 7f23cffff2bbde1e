"""Trajectories as rows to train on elsewhere: OpenAI messages, full tool schemas, metadata; one JSON object a line."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from stillhouse.store.atomic import sync_folder, unwritable
from stillhouse.store.records import write_jsonl
from stillhouse.types import JsonObject, PromptMetadata, TokenUsage, Trajectory


def trajectory_row(trajectory: Trajectory, metadata: PromptMetadata | None) -> JsonObject:
    """One row. The prompt's own metadata has a place of its own, so that no key of it hides one of ours."""
    about: JsonObject = {
        "prompt_id": trajectory.prompt_id,
        "sample_index": trajectory.sample_index,
        "rollout_key": trajectory.rollout_key,
        "teacher": trajectory.model,
        "num_turns": len(trajectory.turns),
        "stop_reason": trajectory.stop_reason.value,
        "finish_reasons": [turn.finish_reason for turn in trajectory.turns],
        "usage": total_usage(trajectory),
        "num_tool_errors": sum(turn.num_tool_errors for turn in trajectory.turns),
    }
    if trajectory.error is not None:
        about["error"] = trajectory.error
    if metadata is not None:
        about["prompt"] = {
            **metadata.metadata,
            "expected_answer": metadata.expected_answer,
            "tag": metadata.tag,
        }
    return {"messages": trajectory.messages, "tools": trajectory.tools, "metadata": about}


def total_usage(trajectory: Trajectory) -> TokenUsage:
    """Tokens of all turns; a key is there where every turn reported it, as a part of a sum is no sum."""
    usages = [turn.usage for turn in trajectory.turns]
    if not usages:
        return {}
    common = set.intersection(*(set(usage) for usage in usages))
    return {key: sum(usage[key] for usage in usages) for key in sorted(common)}  # type: ignore[literal-required,return-value]


def write_rows(path: Path, trajectories: Iterable[Trajectory], metadata: Mapping[str, PromptMetadata]) -> int:
    """Replaces `path` by one row a trajectory, whole or not at all; the number of rows.

    Raises:
        StoreError: no space, no permission, or the folder cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        work = Path(name)
        try:
            rows = (trajectory_row(one, metadata.get(one.prompt_id)) for one in trajectories)
            num_rows = write_jsonl(work, rows)
            work.chmod(0o644)
            work.replace(path)
        finally:
            work.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    return num_rows
