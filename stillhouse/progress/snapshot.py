"""The progress of a run as a file: written while it runs, read by those who watch it from elsewhere."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter

from stillhouse.progress.run_state import RunState
from stillhouse.progress.state import Fact, RolloutProgress

PROGRESS_FILE: Final = "progress.json"
"""Lies beside the run's record and its page."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The latest report of one stage."""

    done: int
    total: int | None
    seconds: float
    """Since its first report, until its last."""
    facts: dict[str, Fact] = field(default_factory=dict)
    rollouts: RolloutProgress | None = None
    """Of a stage that samples, in place of facts."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment."""

    flow: str
    subject: str
    """Digest of what it works on: times of stages are comparable between runs of one subject."""
    status: Literal["running", "done", "failed"]
    updated_at: float
    """In seconds since 1970."""
    run: RunState
    bars: dict[str, Bar]
    failure: str | None = None


_SNAPSHOT: Final = TypeAdapter(Snapshot)


def dump_snapshot(snapshot: Snapshot) -> bytes:
    """The contents of `PROGRESS_FILE`."""
    return _SNAPSHOT.dump_json(snapshot)


def parse_snapshot(data: bytes) -> Snapshot:
    """The snapshot in a file; raises ValueError if it holds another thing."""
    return _SNAPSHOT.validate_json(data)


def earlier_seconds(reports: Path, flow: str, subject: str) -> dict[str, float]:
    """Seconds of each stage in the newest completed run of a flow over the same subject; empty without one."""
    seconds: dict[str, float] = {}
    for file in sorted(reports.glob(f"*-{flow}-*/{PROGRESS_FILE}"), reverse=True):
        try:
            snapshot = parse_snapshot(file.read_bytes())
        except (OSError, ValueError):
            continue
        if snapshot.subject != subject:
            continue
        for stage in snapshot.run.stages:
            if stage.status == "done" and stage.seconds is not None:
                seconds.setdefault(stage.name, stage.seconds)
    return seconds
