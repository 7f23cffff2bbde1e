"""`Attempt`: one try at a training on a cluster, as a folder that the flow and the hosts share.

The name is chosen and noted in the work folder before the cluster is asked, so that a flow that is killed at any moment
finds its job again, and never starts a second one beside it. In `attempts/NAME/` lie the job's description, what each
host answers, where the hosts meet, and at the end the student.
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
from stillhouse.training.launch.messages import message_in
from stillhouse.types import JsonObject

_NOTE: Final = "cluster_job.json"


class AnswerFile:
    """What one host has answered since it was last asked.

    The file is opened anew each time: a network file system then tells what another machine wrote.

    Args:
        path: of JSON lines that another process appends to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def fresh(self) -> list[JsonObject]:
        """The messages of whole lines."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(lines)
        return [message for line in lines.decode(errors="replace").split("\n") if (message := message_in(line))]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a training on a cluster."""

    work_dir: Path
    name: str
    """Of the cluster's job as well: lower-case letters, digits and hyphens, at most 52 characters."""

    @property
    def folder(self) -> Path:
        """What the flow and the hosts share of it."""
        return self.work_dir / "attempts" / self.name

    @property
    def job_file(self) -> Path:
        """What is trained."""
        return self.folder / JOB_FILE

    @property
    def rendezvous_file(self) -> Path:
        """`host:port` where the first host listens, written when all are there."""
        return self.folder / "rendezvous"

    def started_file(self, host: int) -> Path:
        """Marker file: exists once the host has started."""
        return self.folder / f"host-{host}.here"

    def answer_file(self, who: str) -> Path:
        """What a host, by its number, or the cluster's own part of the launcher says."""
        return self.folder / f"answers-{who}.jsonl"

    def answer_files(self) -> list[Path]:
        """Those that are there."""
        return sorted(self.folder.glob("answers-*.jsonl"))

    def take_student(self, folder: Path) -> None:
        """Puts the finished student into `folder` and leaves the attempt whole, should the flow be killed meanwhile."""
        shutil.copytree(self.folder / "student", folder, copy_function=_link_or_copy, dirs_exist_ok=True)


def begin_attempt(job: TrainJob) -> Attempt:
    """A new attempt at a job, noted in its work folder.

    Raises:
        StoreError: the work folder cannot be written.
    """
    method = job.method.replace("_", "-")
    attempt = Attempt(job.work_dir.absolute(), f"stillhouse-{method}-{uuid4().hex[:12]}")
    # The folder that the flow would have filled is gone when the flow is; the attempt's own is not.
    described = job.model_copy(update={"output_dir": attempt.folder / "student"})
    write_atomic(attempt.job_file, described.model_dump_json(indent=1).encode())
    write_atomic(job.work_dir / _NOTE, canonical_json({"name": attempt.name}))
    return attempt


def last_attempt(work_dir: Path) -> Attempt | None:
    """The attempt begun last, whatever became of it; None where there was none."""
    try:
        note = json.loads((work_dir / _NOTE).read_bytes())
    except FileNotFoundError:
        return None
    return Attempt(work_dir.absolute(), note["name"])


def attempt_in(folder: Path) -> Attempt:
    """The attempt whose folder this is."""
    return Attempt(folder.parent.parent, folder.name)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
