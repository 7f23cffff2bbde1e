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
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from stillhouse.chat.assistant_message import in_one_form
from stillhouse.chat.refs import model_identity
from stillhouse.config import DatasetConfig, LabelsConfig, StudentConfig, ToolsConfig
from stillhouse.config.section import ChatTemplateKwargs, Section, later_field
from stillhouse.dataset.contamination import ContaminationLabels, sets_fingerprint
from stillhouse.dataset.duplicates.signatures import SIGNATURE_SCHEMA, signature_batch
from stillhouse.dataset.label_input import LabelInput, Labeller
from stillhouse.dataset.labelling.format import format_labels
from stillhouse.dataset.labelling.functions import UserLabels
from stillhouse.dataset.labelling.rendering import RenderLabels
from stillhouse.dataset.labelling.rewards import RewardLabels
from stillhouse.dataset.recorded import RecordedWriter
from stillhouse.dataset.rows import candidate_row
from stillhouse.dataset.schema import CANDIDATE_COLUMNS, CANDIDATES_FILE, RECORDED_FILE, SIGNATURES_FILE
from stillhouse.dataset.table import TableWriter
from stillhouse.errors import StillhouseError
from stillhouse.labels import LABELS
from stillhouse.processes.exit import exit_with_parent
from stillhouse.store.fingerprint import file_sha256
from stillhouse.store.records import read_metadata, read_trajectories
from stillhouse.tools.reward_set import RewardFailures
from stillhouse.types import JsonObject, PromptMetadata, Trajectory
from stillhouse.verification import VerificationResult, examine_trajectory

_BATCH_SIZE: Final = 256
_pool: Final[ContextVar[Executor | None]] = ContextVar("_pool", default=None)


class Labelling(Section):
    """Measurements of a config and all that they need, as small JSON that another process can be handed."""

    labels: LabelsConfig
    measured: tuple[str, ...] = ()
    """The labels of `stillhouse.labels.ON_REQUEST` to measure."""
    sets: dict[str, str] = {}
    """Files of evaluation sets by name."""
    overlap_lengths: tuple[int, ...] = (8, 13)
    """Lengths in words of the overlaps with them."""
    tools: ToolsConfig
    """Names the file of the rewards."""
    tokenizer: str
    """Model ref of the student, whose chat template `labels.render` uses."""
    chat_template_kwargs: ChatTemplateKwargs = later_field({})
    """Values for the variables of that template."""
    sampling: str | None = None
    """Hash of teacher, sampling and tools; None for trajectories sampled elsewhere."""
    contents: JsonObject = {}
    """Hashes of the files and the model named above; when one changes, a process reads them again."""

    @classmethod
    def of(
        cls, config: DatasetConfig, *, tools: ToolsConfig, student: StudentConfig, sampling: str | None = None
    ) -> "Labelling":
        """Return what a config asks to measure; equal for configs that differ only in what is not measured.

        Raises ConfigError if the student is missing; InputError if an evaluation set is missing.
        """
        labels, measured = config.labels, config.measured
        tools = tools if "rewards" in measured else ToolsConfig()
        files = [None if name is None else Path(name).expanduser() for name in (labels.file, tools.rewards_file)]
        return cls(
            labels=labels.model_copy(update={"measure": ()}),
            measured=measured,
            sets=config.contamination,
            overlap_lengths=config.overlap_lengths,
            tools=tools,
            tokenizer=student.model if labels.render else "",
            chat_template_kwargs=student.chat_template_kwargs if labels.render else {},
            sampling=sampling,
            contents={
                # A missing file is reported by whoever loads it.
                "files": [file_sha256(path) if path is not None and path.is_file() else None for path in files],
                "sets": sets_fingerprint(config.contamination),
                "tokenizer": model_identity(student.model) if labels.render else None,
            },
        )


@contextmanager
def label_processes(num_processes: int) -> Iterator[Executor]:
    """Yield a process pool for `label_file`, which ends with the block and with this process, however it ends."""
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


def label_file(trajectories: Path, metadata: Path, labelling: Labelling, folder: Path) -> tuple[int, RewardFailures]:
    """Do as `label_shard` over files, in the pool of `label_processes` if there is one."""
    pool = _pool.get()
    if pool is None:
        return label_shard(read_trajectories(trajectories), read_metadata(metadata), labelling, folder)
    try:
        return pool.submit(label_file, trajectories, metadata, labelling, folder).result()
    except BrokenProcessPool as error:
        raise StillhouseError(
            f"a process was killed while it labelled {trajectories} or a file beside it, as happens where memory runs "
            "out. Set runtime.num_threads lower and run the same command again: finished shards are kept",
            code="labels-killed",
        ) from error


def label_shard(
    trajectories: Iterable[Trajectory], metadata: Mapping[str, PromptMetadata], labelling: Labelling, folder: Path
) -> tuple[int, RewardFailures]:
    """Fill an empty `folder` with candidates, signatures and what was recorded of them, in the order given.

    Messages of older versions and of other programs are read as an answer is today. `metadata` is keyed by prompt id; a
    prompt without an entry is unverified. Returns the number of rows, and which rewards failed. Raises ConfigError if a
    file or tokenizer that the config names cannot be used; InputError if an evaluation set cannot be read.
    """
    remaining = (replace(one, messages=in_one_form(one.messages)) for one in trajectories)
    failures = RewardFailures()
    for labeller in _labellers_of(labelling):
        if isinstance(labeller, RewardLabels):
            failures = labeller.count_anew()
    with (
        TableWriter(folder / CANDIDATES_FILE, CANDIDATE_COLUMNS) as candidates,
        pq.ParquetWriter(folder / SIGNATURES_FILE, SIGNATURE_SCHEMA) as signatures,
        RecordedWriter(folder / RECORDED_FILE) as recorded,
    ):
        while batch := list(islice(remaining, _BATCH_SIZE)):
            inputs = [LabelInput.of(trajectory, metadata.get(trajectory.prompt_id)) for trajectory in batch]
            for row in labelled_rows(inputs, labelling):
                candidates.write(row)
            signatures.write_batch(signature_batch(inputs, near="near_duplicates" in labelling.measured))
            recorded.write(batch)
    return candidates.num_rows, failures


def labelled_rows(inputs: Sequence[LabelInput], labelling: Labelling) -> list[JsonObject]:
    """Return one row of `schema.CANDIDATE_COLUMNS` for each input, JSON columns as JSON text."""
    labels: list[dict[str, Any]] = [{} for _ in inputs]
    for labeller in _labellers_of(labelling):
        for name, values in labeller(inputs).items():
            for row, value in zip(labels, values, strict=True):
                # Several labellers give scores, under different names.
                row[name] = {**row.get(name, {}), **(value or {})} if name == "scores" else value
    return [
        candidate_row(item.trajectory, item.metadata, row, labelling.sampling)
        for item, row in zip(inputs, labels, strict=True)
    ]


def _labellers_of(labelling: Labelling) -> list[Labeller]:
    """Return the labellers of a config, the same objects for equal ones that follow each other."""
    # They do not depend on who sampled a row, so the cache is shared.
    return _labellers(labelling.model_copy(update={"sampling": None}).model_dump_json())


@lru_cache(maxsize=1)
def _labellers(labelling_json: str) -> list[Labeller]:
    """Return the labellers of a config, cached, since a tokenizer or an index of sets takes seconds to load."""
    labelling = Labelling.model_validate_json(labelling_json)
    labels, measured = labelling.labels, labelling.measured
    labellers: list[Labeller] = [partial(text_labels, measured=measured), verification_labels, format_labels]
    if "privacy" in measured:
        # Loads the tables of several libraries, which takes half a second.
        from stillhouse.dataset.labelling.privacy import privacy_labels

        labellers.append(privacy_labels)
    if labels.file is not None:
        labellers.append(UserLabels(Path(labels.file)))
    if "rewards" in measured:
        labellers.append(RewardLabels(labelling.tools))
    if labelling.sets:
        labellers.append(ContaminationLabels(labelling.sets, labelling.overlap_lengths))
    if labels.render:
        labellers.append(RenderLabels(labelling.tokenizer, labelling.chat_template_kwargs))
    return labellers


def text_labels(inputs: Sequence[LabelInput], *, measured: Sequence[str] = ()) -> Mapping[str, Sequence[Any]]:
    """Return the columns that are computed from the texts alone, of labels that are not on request or in `measured`."""
    labels = [label for label in LABELS if label.on_request is None or label.on_request in measured]
    columns = [(column.name, column.compute) for label in labels for column in label.columns if column.compute]
    # By row, since columns of one label may share what was computed last.
    rows = [[compute(item) for _, compute in columns] for item in inputs]
    return {name: [row[place] for row in rows] for place, (name, _) in enumerate(columns)}


def verification_labels(inputs: Sequence[LabelInput]) -> Mapping[str, Sequence[Any]]:
    """Return the columns `verifier`, `verified`, `compared` and `verification`."""
    verdicts = [examine_trajectory(item.trajectory, item.metadata) for item in inputs]
    return {name: [verdict.columns[name] for verdict in verdicts] for name in VerificationResult(None).columns}
