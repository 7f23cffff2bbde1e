"""Labels trajectories: a shard of candidates, in this process or in a pool.

Labels measure and decide nothing, so that other thresholds can be tried without sampling, verifying or rendering
again. A shard depends only on its trajectories, their metadata and a `Labelling`.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from stillhouse.chat.refs import model_identity
from stillhouse.config import ContaminationConfig, DatasetConfig, DuplicatesConfig, LabelsConfig, ToolsConfig
from stillhouse.dataset.contamination import ContaminationLabels
from stillhouse.dataset.duplicates.signatures import SIGNATURE_SCHEMA, signature_batch
from stillhouse.dataset.evaluation_sets import sets_fingerprint
from stillhouse.dataset.labelling.format import FormatLabels
from stillhouse.dataset.labelling.functions import UserLabels
from stillhouse.dataset.labelling.language import LanguageLabels
from stillhouse.dataset.labelling.refusals import refusal_labels
from stillhouse.dataset.labelling.rendering import RenderLabels
from stillhouse.dataset.labelling.rewards import RewardLabels
from stillhouse.dataset.labelling.subject import Labeller, Subject
from stillhouse.dataset.labelling.text import text_labels
from stillhouse.dataset.rows import candidate_row
from stillhouse.dataset.schema import CANDIDATE_COLUMNS, CANDIDATES_FILE, SIGNATURES_FILE
from stillhouse.dataset.table import TableWriter
from stillhouse.errors import StillhouseError
from stillhouse.processes.exit import exit_with_parent
from stillhouse.store.fingerprint import file_sha256
from stillhouse.store.records import read_metadata, read_trajectories
from stillhouse.types import JsonObject, PromptMetadata, Trajectory
from stillhouse.verification import examine

_BATCH: Final = 256


class Labelling(BaseModel):
    """What is measured, and what the measuring needs: small and JSON, to be handed to another process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: LabelsConfig
    duplicates: DuplicatesConfig
    contamination: ContaminationConfig
    tools: ToolsConfig
    """Where `labels.rewards` finds its file."""
    tokenizer: str
    """The student, whose chat template `labels.render` renders with."""
    sampling: str | None = None
    """Hash of teacher, sampling and tools; None for trajectories sampled elsewhere."""
    contents: JsonObject = {}
    """What the files and the model named above hold. A process reads them again when it changes."""

    @classmethod
    def of(cls, config: DatasetConfig, *, tools: ToolsConfig, student: str, sampling: str | None = None) -> "Labelling":
        """What a config asks to measure; equal wherever the rest of the config makes no difference to it.

        Args:
            config: What is measured.
            tools: Where `labels.rewards` finds its file.
            student: Its model ref.
            sampling: As the field.

        Raises:
            ConfigError: The student cannot be found.
            InputError: An evaluation set cannot be found.
        """
        labels, asked = config.labels, config.duplicates
        tools = tools if labels.rewards else ToolsConfig()
        files = [labels.file, tools.rewards_file]
        return cls(
            labels=labels,
            duplicates=DuplicatesConfig(
                near=asked.near, shingle_words=asked.shingle_words, num_permutations=asked.num_permutations
            ),
            contamination=config.contamination,
            tools=tools,
            tokenizer=student if labels.render else "",
            sampling=sampling,
            contents={
                "files": [None if name is None else _sha256(Path(name).expanduser()) for name in files],
                "sets": sets_fingerprint(config.contamination),
                "tokenizer": model_identity(student) if labels.render else None,
            },
        )


def label_shard(
    trajectories: Iterable[Trajectory], metadata: Mapping[str, PromptMetadata], labelling: Labelling, folder: Path
) -> int:
    """Fills `folder` with candidates and signatures, row by row in the order given.

    Args:
        trajectories: Finished and failed ones.
        metadata: By prompt id; a prompt without an entry is unverified.
        labelling: What is measured.
        folder: An empty folder.

    Returns:
        The number of rows.

    Raises:
        ConfigError: A file or a tokenizer that the config names cannot be used.
        InputError: An evaluation set cannot be read.
    """
    with (
        TableWriter(folder / CANDIDATES_FILE, CANDIDATE_COLUMNS) as candidates,
        pq.ParquetWriter(folder / SIGNATURES_FILE, SIGNATURE_SCHEMA) as signatures,
    ):
        for batch in _batches(trajectories):
            subjects = [Subject.of(one, metadata.get(one.prompt_id)) for one in batch]
            for row in labelled_rows(subjects, labelling):
                candidates.write(row)
            signatures.write_batch(signature_batch(subjects, labelling.duplicates))
    return candidates.num_rows


def labelled_rows(subjects: Sequence[Subject], labelling: Labelling) -> list[JsonObject]:
    """One row of `schema.CANDIDATE_COLUMNS` for each subject, JSON columns as JSON text."""
    labels: list[dict[str, Any]] = [{} for _ in subjects]
    # Who sampled a row is no matter of the labellers.
    for labeller in _labellers(labelling.model_copy(update={"sampling": None}).model_dump_json()):
        for name, values in labeller(subjects).items():
            for known, value in zip(labels, values, strict=True):
                # Several labellers give scores, each under names of its own.
                known[name] = {**known.get(name, {}), **(value or {})} if name == "scores" else value
    return [
        candidate_row(subject.trajectory, subject.metadata, known, labelling.sampling)
        for subject, known in zip(subjects, labels, strict=True)
    ]


@lru_cache(maxsize=1)
def _labellers(labelling_json: str) -> list[Labeller]:
    """The labellers of a config; kept, since a tokenizer or an index of evaluation sets takes seconds to load."""
    labelling = Labelling.model_validate_json(labelling_json)
    labels = labelling.labels
    found: list[Labeller] = [
        text_labels,
        verification_labels,
        refusal_labels,
        FormatLabels(labels.answer_schema, labels.answer_pattern),
    ]
    if labels.language:
        found.append(LanguageLabels())
    if labels.privacy:
        # Loads the tables of several libraries, which takes half a second.
        from stillhouse.dataset.labelling.privacy import PrivacyLabels

        found.append(PrivacyLabels())
    if labels.file is not None:
        found.append(UserLabels(Path(labels.file)))
    if labels.rewards:
        found.append(RewardLabels(labelling.tools))
    if labelling.contamination.sets:
        found.append(ContaminationLabels(labelling.contamination))
    if labels.render:
        found.append(RenderLabels(labelling.tokenizer))
    return found


def _sha256(path: Path) -> str | None:
    """None for a file that is missing, of which whoever loads it tells."""
    return file_sha256(path) if path.is_file() else None


def _batches(trajectories: Iterable[Trajectory]) -> Iterator[list[Trajectory]]:
    remaining = iter(trajectories)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def verification_labels(subjects: Sequence[Subject]) -> Mapping[str, Sequence[Any]]:
    """The columns `verifier`, `verified` and `verification`."""
    verdicts = []
    for subject in subjects:
        trajectory = subject.trajectory
        # Without a turn the last assistant message is the prompt's own.
        messages = trajectory.messages if trajectory.turns else []
        verdicts.append(examine(messages, trajectory.stop_reason, subject.metadata))
    return {
        "verifier": [verdict.verifier for verdict in verdicts],
        "verified": [verdict.verified for verdict in verdicts],
        "verification": [verdict.note for verdict in verdicts],
    }


_pool: Final[ContextVar[Executor | None]] = ContextVar("_pool", default=None)


def label_file(trajectories: Path, metadata: Path, labelling: Labelling, folder: Path) -> int:
    """`label_shard` over files; the number of rows.

    Inside `label_processes` one of its processes does the work, and this thread waits.

    Raises:
        StillhouseError: as `label_shard`, in whichever process; or that process was killed.
    """
    pool = _pool.get()
    if pool is None:
        return label_shard(read_trajectories(trajectories), read_metadata(metadata), labelling, folder)
    try:
        return pool.submit(label_file, trajectories, metadata, labelling, folder).result()
    except BrokenProcessPool as error:
        raise StillhouseError(
            f"a process was killed while it labelled {trajectories} or a file beside it, as happens where memory runs "
            "out. Set runtime.label_processes lower and run the same command again: finished shards are kept"
        ) from error


@contextmanager
def label_processes(num_processes: int) -> Iterator[Executor]:
    """Processes for `label_file`, which end with the block and with this process, however it ends."""
    pool = ProcessPoolExecutor(
        num_processes,
        # Forked from a process with threads, a child may inherit a lock that nobody will release.
        mp_context=get_context("spawn"),
        initializer=exit_with_parent,
        initargs=(os.getpid(),),
    )
    token = _pool.set(pool)
    try:
        yield pool
    finally:
        _pool.reset(token)
        pool.shutdown(wait=True, cancel_futures=True)
