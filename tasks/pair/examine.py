"""All findings about a pair: of its answers, and of what the training process measures."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from stillhouse.config import DistillConfig, OnPolicyConfig
from stillhouse.errors import StillhouseError, TrainingKilled
from stillhouse.inference.budget import remaining_budget
from stillhouse.pair import PairFinding
from stillhouse.pair.cost import training_finding
from stillhouse.pair.reading import ends_finding, opening_finding, rendering_finding, student_ends_finding
from stillhouse.pair.scores import agreement_finding, vocabulary_finding
from stillhouse.prompts.parse import parse_prompts, split_prompts
from stillhouse.store import digest
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train
from stillhouse.training.pair.figures import PairFigures, read_figures
from stillhouse.training.recording.consistency import teachers_warning, writers_of
from stillhouse.types import Model, Prompt, PromptMetadata
from tasks.models import base_student
from tasks.pair.answers import Answering
from tasks.pair.case import PairCase
from tasks.run.context import RunContext
from tasks.run.progress import progress
from tasks.trial import context_of

NUM_PROMPTS: Final = 32
"""Some tens, enough to tell a pair that does not fit from one that does."""


def examine_config(config: DistillConfig, num_prompts: int = NUM_PROMPTS) -> list[PairFinding]:
    """What is found about the pair of a config, its student being `student.model`; without Prefect and MLflow.

    Raises:
        ConfigError, InputError: prompts, tools or rewards cannot be read.
    """
    parsed = parse_prompts(config.prompts, config.runtime.failure_budget)
    trained, held_out = split_prompts(parsed.prompts, config.prompts.held_out_fraction, config.prompts.split_seed)
    writes_rows = config.sft.enabled and config.sft.dataset_weight > 0.0 and config.rollouts.trajectories_file is None
    num_asked = min(len(trained), config.rollouts.max_prompts or len(trained))
    case = PairCase.of(
        config,
        num_rollouts=num_asked * config.rollouts.num_samples if writes_rows else 0,
        comes_after_sft=config.sft.enabled,
    )
    with context_of(config) as context:
        prompts = (held_out or trained)[:num_prompts]
        return examine_pair(base_student(config.student), prompts, parsed.metadata, case, context)


def examine_pair(
    start: Model,
    prompts: Sequence[Prompt],
    metadata: Mapping[str, PromptMetadata],
    case: PairCase,
    context: RunContext,
) -> list[PairFinding]:
    """All findings, in the order in which a person wants to read them.

    Args:
        start: the student.
        prompts: those it is measured on.
        metadata: by prompt id; may lack any.
        case: the rest of the pair.
        context: of the run.
    """
    findings = list(_rows_findings(start, case))
    findings += Answering(start, prompts, metadata, case, context).findings()
    if case.training is not None:
        findings += _measured_findings(start, prompts, metadata, case, context)
    return findings or [PairFinding("pair", "unknown", "no teacher takes part: SFT learns from given rows alone")]


def _rows_findings(start: Model, case: PairCase) -> Iterator[PairFinding]:
    """Whether the teacher that scores wrote the rows of SFT."""
    wrote = writers_of(Path(start.ref)) | ({case.teacher.model} if case.num_rollouts else set())
    score = {teacher.model for teacher in case.scorers if teacher.model is not None}
    if not wrote or not score:
        return
    warning = teachers_warning(wrote, score)
    same = f"{', '.join(sorted(wrote))} writes the rows of SFT and scores"
    yield PairFinding("teacher of the rows", "fine" if warning is None else "change", warning or same)


def _measured_findings(
    start: Model,
    prompts: Sequence[Prompt],
    metadata: Mapping[str, PromptMetadata],
    case: PairCase,
    context: RunContext,
) -> Iterator[PairFinding]:
    """What the training process finds about what the student samples."""
    training, settings = case.training, case.settings
    assert training is not None
    assert settings is not None
    try:
        figures = _measure(start, prompts, metadata, case, settings, context)
    except TrainingKilled:
        raise
    except StillhouseError as error:
        yield PairFinding("student: samples", "no", f"it cannot be sampled for training: {error}")
        return
    for teacher in figures.teachers:
        found = (
            vocabulary_finding(figures.student, teacher),
            agreement_finding(teacher),
            rendering_finding(teacher),
            ends_finding(teacher, comes_after_sft=case.comes_after_sft),
            opening_finding(figures.student, teacher),
        )
        yield from (finding for finding in found if finding is not None)
    yield student_ends_finding(figures.student, comes_after_sft=case.comes_after_sft)
    yield training_finding(training, figures)


def _measure(
    start: Model,
    prompts: Sequence[Prompt],
    metadata: Mapping[str, PromptMetadata],
    case: PairCase,
    settings: OnPolicyConfig,
    context: RunContext,
) -> PairFigures:
    folder = context.store.root / "training" / f"pair-{digest([start.fingerprint, context.run_id])[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_jsonl(folder / "prompts.jsonl", prompts)
        write_jsonl(folder / "metadata.jsonl", [metadata[prompt.id] for prompt in prompts if prompt.id in metadata])
        job = TrainJob(
            method="pair",
            student_ref=start.ref,
            student=case.student,
            on_policy=settings,
            prompts_file=folder / "prompts.jsonl",
            metadata_file=folder / "metadata.jsonl",
            tools=case.tools,
            system_prompt=case.system_prompt,
            rules=case.rules,
            work_dir=folder,
            output_dir=folder,
            runtime=context.runtime.in_one_process,
            budget=remaining_budget(context.run_id, context.budget),
        )
        train(job, progress())
        return read_figures(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
