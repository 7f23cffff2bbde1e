"""`student.json`: the record of how a student was trained. Free of torch.

It has no dates: records of equal trainings differ only in their `facts`, which hold seconds and speeds.
"""

from pathlib import Path
from typing import Final, Literal, Self

import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, ValidationError

from stillhouse.dataset.read import iter_columns
from stillhouse.errors import InputError
from stillhouse.store.artifacts import artifact_in
from stillhouse.store.atomic import write_atomic
from stillhouse.store.records import read_prompts
from stillhouse.training.job import TrainJob
from stillhouse.types import JsonObject

STUDENT_FILE: Final = "student.json"
MERGED_FOLDER: Final = "merged"
"""Beside an adapter: the weights of its base with it merged in."""


class StudentRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["sft", "on_policy"]
    base: str
    """Model ref of the weights below its adapter; without one, of the weights that training started from."""
    started_from: str
    """Model ref of the base, or of an earlier student."""
    config: JsonObject
    """Everything its weights depend on: `TrainJob.identity`."""
    facts: JsonObject
    """Results of the trainer."""
    data: JsonObject = {}
    """Its training data: fingerprint, rows, tokens."""
    teachers: tuple[str, ...] = ()
    """Names or identities of the teachers."""
    before: Self | None = None
    """The record of the student that training started from, if any."""
    merged: JsonObject | None = None
    """The `MergeCheck` where an adapter was merged into the weights."""

    @property
    def stages(self) -> list["StudentRecord"]:
        """Return the trainings of the student, from the first to this one."""
        return [*(self.before.stages if self.before else ()), self]

    def write(self, folder: Path) -> None:
        write_atomic(folder / STUDENT_FILE, self.model_dump_json(indent=1, exclude_defaults=True).encode())


def read_record(folder: Path) -> StudentRecord:
    """Return the record in a student's folder; raise InputError if there is none, or it cannot be read."""
    path = folder / STUDENT_FILE
    try:
        return StudentRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        else:
            problem = str(error.strerror)
        raise InputError(
            f"{path}: cannot be read as the record of a student: {problem}; expected the folder of a student that "
            "Stillhouse trained"
        ) from error


def record_of(job: TrainJob, base: str, facts: JsonObject) -> StudentRecord:
    """Return the record of a training that has ended."""
    start = Path(job.student_ref)
    config = job.identity()
    if job.on_policy is not None:
        itself = {teacher.name for teacher in job.on_policy.teachers if teacher.is_student}
        teacher_names = [model for name, model in config["teachers"].items() if name not in itself]
    else:
        batches = [] if job.dataset_folder is None else iter_columns(job.dataset_folder / "train.parquet", ["teacher"])
        teacher_names = sorted({name for batch in batches for name in pc.unique(batch.column(0)).to_pylist()} - {None})
    return StudentRecord(
        method=job.method,
        base=base,
        started_from=job.student_ref,
        config=config,
        facts=facts,
        data=_data(job, config),
        teachers=tuple(teacher_names),
        before=read_record(start) if (start / STUDENT_FILE).is_file() else None,
    )


def _data(job: TrainJob, config: JsonObject) -> JsonObject:
    if job.prompts_file is not None:
        return {"fingerprint": config["prompts"], "rows": sum(1 for _ in read_prompts(job.prompts_file))}
    if job.dataset_folder is None:
        return {}
    artifact = artifact_in(job.dataset_folder)
    rows, tokens, supervised = 0, 0, 0
    for batch in iter_columns(job.dataset_folder / "train.parquet", ["num_tokens", "num_supervised_tokens"]):
        rows += batch.num_rows
        # Null where rows were not rendered.
        tokens += pc.sum(batch.column(0)).as_py() or 0
        supervised += pc.sum(batch.column(1)).as_py() or 0
    return {
        "fingerprint": config.get("dataset") if artifact is None else artifact.fingerprint,
        "rows": rows,
        "tokens": tokens or None,
        "supervised_tokens": supervised or None,
    }
