"""`Attempt`: one try at a training on a cluster, as a folder that the flow and the hosts share.

Its name is chosen and noted in the work folder before the cluster is asked, so that a flow killed at any moment finds
its job again and never starts a second one. `attempts/NAME/` holds the job's description, the messages of each host,
the address where the hosts meet, and at the end the student.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from stillhouse.store import canonical_json
from stillhouse.store.atomic import write_atomic
from stillhouse.training.job import JOB_FILE, TrainJob
from stillhouse.training.launch.messages import parse_message
from stillhouse.types import JsonObject

ALL_MESSAGES: Final = "answers-*.jsonl"
_NOTE: Final = "cluster_job.json"


class MessageFile:
    """Messages that another process appends to a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_messages(self) -> list[JsonObject]:
        """Return the messages of complete lines added since the last call."""
        # Opened anew each time: a network file system then shows what another machine wrote.
        with self._path.open("rb") as file:
            file.seek(self._offset)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._offset += len(lines)
        return [message for line in lines.decode(errors="replace").split("\n") if (message := parse_message(line))]


@dataclass(frozen=True, slots=True)
class Attempt:
    folder: Path
    """Shared by the flow and the hosts."""

    @property
    def name(self) -> str:
        """Name of the cluster's job too: lower-case letters, digits and hyphens, at most 52 characters."""
        return self.folder.name

    @property
    def job_file(self) -> Path:
        return self.folder / JOB_FILE

    def message_file(self, sender: str) -> Path:
        """Return messages of a host, by its number, or of the launcher's part inside the cluster."""
        return self.folder / f"answers-{sender}.jsonl"

    def take_student(self, folder: Path) -> None:
        """Put the finished student into `folder`; the attempt stays complete, should the flow be killed meanwhile."""
        shutil.copytree(self.folder / "student", folder, copy_function=_link_or_copy, dirs_exist_ok=True)


def begin_attempt(job: TrainJob) -> Attempt:
    """Return a new attempt at a job, noted in its work folder."""
    method = job.method.replace("_", "-")
    attempt = _named(job.work_dir, f"stillhouse-{method}-{uuid4().hex[:12]}")
    # The flow's output folder is removed when the flow is killed; the attempt's is not.
    described = job.model_copy(update={"output_dir": attempt.folder / "student"})
    write_atomic(attempt.job_file, described.model_dump_json(indent=1).encode())
    write_atomic(job.work_dir / _NOTE, canonical_json({"name": attempt.name}))
    return attempt


def last_attempt(work_dir: Path) -> Attempt | None:
    """Return the latest attempt, whatever became of it; None where there was none."""
    try:
        note = json.loads((work_dir / _NOTE).read_bytes())
    except FileNotFoundError:
        return None
    return _named(work_dir, note["name"])


def _named(work_dir: Path, name: str) -> Attempt:
    return Attempt(work_dir.absolute() / "attempts" / name)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
