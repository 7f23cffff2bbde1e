"""The examination of a pair: by `stillhouse doctor --pair`, and as a stage before an on-policy training of minutes."""

import logging
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from stillhouse.config import DistillConfig, OnPolicyConfig
from stillhouse.errors import StillhouseError, TrainingError, TrainingKilled
from stillhouse.inference.budget import remaining_budget
from stillhouse.inference.vllm.launch import model_facts
from stillhouse.progress.text import duration, short
from stillhouse.prompts.parse import parse_prompts, split_prompts
from stillhouse.store import digest
from stillhouse.store.records import read_jsonl, read_metadata, read_prompts, write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train
from stillhouse.training.pair.finding import FINDINGS_FILE, PairFinding, verdict_of
from stillhouse.training.results.teachers import teachers_warning, writers_of
from stillhouse.types import Artifact, JsonObject, Model, Prompt, PromptMetadata
from tasks.models import base_student
from tasks.pair.answers import Answering
from tasks.pair.case import PairCase
from tasks.prompts import PromptSets, metadata_file, prompts_file
from tasks.remote.flow_run_stage import call_stage_on
from tasks.run.context import Run, RunContext
from tasks.run.progress import progress
from tasks.run.stage import Stage
from tasks.trial import context_of

PAIR = Stage(
    "pair",
    version=2,
    result="{verdict}",
    when=lambda config: config.on_policy.pair_check != "off",
    foreseen=False,
    is_remote=True,
)
NUM_PROMPTS: Final = 32
"""Some tens, enough to tell a pair that does not fit from one that does."""
_FLOPS: Final = 1e10
"""A second of one CPU core, as small models reach it."""
_STUDENT_FLOPS: Final = 8.0
"""For each weight and token: 2 to sample it, 6 to train on it."""
_TEACHER_FLOPS: Final = 2.0
_MINUTES_S: Final = 600.0
_TRAIN_PASSES: Final = 3.0
"""Forward passes that an optimiser step costs: one, and a backward pass of two."""
_logger = logging.getLogger("stillhouse.pair")


def check_pair(start: Model, prompts: PromptSets, config: DistillConfig, run: Run) -> None:
    """Examine the pair of a costly on-policy training, and warn of what does not fit.

    Raises TrainingError if the verdict is no, and `on_policy.pair_check` is `auto`.
    """
    check = config.on_policy.pair_check
    if not PAIR.when(config) or not may_take_minutes(config.on_policy, start.ref, config.local_teachers.values()):
        return
    is_held_out = prompts.held_out.num_rows > 0
    artifact: Artifact = call_stage_on(
        config.runtime.training_deployment,
        PAIR,
        run,
        start=start,
        prompts=prompts.held_out if is_held_out else prompts.train,
        metadata=prompts.held_out_metadata if is_held_out else prompts.train_metadata,
        case=PairCase.of(config),
    )
    findings = [PairFinding(**row) for row in read_jsonl(Path(artifact.uri) / FINDINGS_FILE)]
    for finding in findings:
        if finding.level in ("change", "no"):
            _logger.warning("%s: %s", finding.name, finding.detail)
    grave = [f"{finding.name}: {finding.detail}" for finding in findings if finding.level == "no"]
    if grave and check == "auto":
        raise TrainingError(
            f"student and teacher do not fit together: {'; '.join(grave)}. Mend it, or set on_policy.pair_check to "
            "`warn` to train all the same",
            code="pair",
        )


@PAIR.made_by
def pair_task(
    start: Model, prompts: Artifact, metadata: Artifact, case: PairCase, key: str, context: RunContext
) -> Artifact:
    """Examine a pair on the first of the prompts."""
    rows = list(islice(read_prompts(prompts_file(prompts)), NUM_PROMPTS))
    findings = examine_pair(start, rows, read_metadata(metadata_file(metadata)), case, context)
    lines = [finding._asdict() for finding in findings]
    facts = {"verdict": verdict_of(findings)}
    return context.store.write(
        PAIR.name, digest(key), lambda folder: (write_jsonl(folder / FINDINGS_FILE, lines), facts)
    )


def examine_config(config: DistillConfig, num_prompts: int = NUM_PROMPTS) -> list[PairFinding]:
    """Examine the pair of a config, its student being `student.model`; without Prefect and MLflow."""
    parsed = parse_prompts(config.prompts, config.runtime.failure_budget)
    trained, held_out = split_prompts(parsed.prompts, config.prompts.held_out_fraction, config.prompts.split_seed)
    writes_rows = config.sft.enabled and config.sft.dataset_weight > 0.0 and config.rollouts.trajectories_file is None
    num_asked = min(len(trained), config.rollouts.max_prompts or len(trained))
    num_rollouts = num_asked * config.rollouts.num_samples if writes_rows else 0
    case = PairCase.of(config, num_rollouts=num_rollouts, comes_after_sft=config.sft.enabled)
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
    """Return all findings about the student `start` and its teachers, measured on `prompts`."""
    findings = list(_rows_findings(start, case))
    findings += Answering(start, prompts, metadata, case, context).findings()
    if case.training is not None:
        try:
            measured, facts = _measure(start, prompts, metadata, case, context)
            findings += (_after_sft(finding) if case.comes_after_sft else finding for finding in measured)
            findings.append(training_finding(case.training, facts))
        except TrainingKilled:
            raise
        except StillhouseError as error:
            findings.append(PairFinding("student: samples", "no", f"it cannot be sampled for training: {error}"))
    return findings or [PairFinding("pair", "unknown", "no teacher takes part: SFT learns from given rows alone")]


def _rows_findings(start: Model, case: PairCase) -> Iterator[PairFinding]:
    """Say if the teacher that scores wrote the rows of SFT."""
    wrote = writers_of(Path(start.ref)) | ({case.teacher.model} if case.num_rollouts else set())
    score = {teacher.model for teacher in case.scorers if teacher.model is not None}
    if wrote and score:
        warning = teachers_warning(wrote, score)
        same = f"{', '.join(sorted(wrote))} writes the rows of SFT and scores"
        yield PairFinding("teacher of the rows", "fine" if warning is None else "change", warning or same)


def _after_sft(finding: PairFinding) -> PairFinding:
    """Forgive the student what SFT teaches: to end its turns as the teacher does."""
    if finding.level == "change" and finding.name.endswith(": ends"):
        return finding._replace(level="fine", detail=f"{finding.detail}; SFT, which comes first, mends it")
    return finding


def _measure(
    start: Model,
    prompts: Sequence[Prompt],
    metadata: Mapping[str, PromptMetadata],
    case: PairCase,
    context: RunContext,
) -> tuple[list[PairFinding], JsonObject]:
    folder = context.store.root / "training" / f"pair-{digest([start.fingerprint, context.run_id])[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_jsonl(folder / "prompts.jsonl", prompts)
        write_jsonl(folder / "metadata.jsonl", [metadata[prompt.id] for prompt in prompts if prompt.id in metadata])
        job = TrainJob(
            method="pair",
            student_ref=start.ref,
            student=case.student,
            on_policy=case.settings,
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
        facts = train(job, progress())
        return [PairFinding(**row) for row in read_jsonl(folder / FINDINGS_FILE)], facts
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def num_trajectories(config: OnPolicyConfig) -> int:
    return config.num_batches * config.prompts_per_step * config.group_size


def may_take_minutes(config: OnPolicyConfig, student_ref: str, teacher_refs: Iterable[str]) -> bool:
    """Return if a training may take more than ten minutes, were every completion as long as allowed, on one CPU core.

    Rather too often yes than too seldom: always for models whose size is not known here.
    """
    turns = config.max_turns
    tokens = num_trajectories(config) * config.max_tokens * turns
    # Of at least two bytes each.
    student, *teachers = (model_facts(ref)[1] / 2 or math.inf for ref in (student_ref, *teacher_refs))
    flops = tokens * (_STUDENT_FLOPS * config.num_passes * student + _TEACHER_FLOPS * sum(teachers))
    return flops / _FLOPS > _MINUTES_S


def training_finding(config: OnPolicyConfig, facts: Mapping[str, Any]) -> PairFinding:
    """Return time and tokens of the whole training, at the speeds at which the pair was measured."""
    factor = num_trajectories(config) / facts["rows"]
    sampling, scoring = factor * facts["sampling_s"], factor * facts["scoring_s"]
    training = factor * facts["forward_s"] * _TRAIN_PASSES * config.num_passes
    detail = (
        f"about {duration(sampling + scoring + training)} at this speed: sampling {duration(sampling)}, scoring "
        f"{duration(scoring)}, training {duration(training)}; {num_trajectories(config):,} trajectories of "
        f"{facts['sampled_tokens'] / facts['rows']:.0f} sampled tokens, {short(factor * facts['input_tokens'])} tokens "
        "for teachers to read"
    )
    return PairFinding("cost: training", "fine", detail)
