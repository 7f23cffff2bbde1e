"""A training job from its JSON to the student's folder; runs inside the training process."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch
from transformers.utils.logging import disable_progress_bar

from stillhouse.chat.rendering import start_rendering
from stillhouse.progress.state import Progress
from stillhouse.store import ArtifactStore
from stillhouse.tracking import TrackedRun, attach
from stillhouse.training.job import TrainJob
from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.loop.method import Method
from stillhouse.training.measuring import load_generations
from stillhouse.training.model.adapters import adapter_summary
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import Listener
from stillhouse.training.on_policy.load import load_on_policy
from stillhouse.training.on_policy.monitoring.alarms import alarms_of
from stillhouse.training.pair.measure import measure_pair
from stillhouse.training.ranks import Ranks, join_ranks
from stillhouse.training.recording import record_rollouts
from stillhouse.training.repeatability import make_repeatable
from stillhouse.training.results.write import write_results
from stillhouse.training.scoring.rows import score_rows
from stillhouse.training.sft.method import load_sft
from stillhouse.training.sft.render import sample_length
from stillhouse.training.workdir import exclusive
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)

_PREPARING = {"sft": "reading rows", "on_policy": "loading teachers"}
"""The work between the student and the first step, by method."""


def run_job(job: TrainJob, progress: Progress) -> JsonObject:
    """Train, write the student to `job.output_dir`, and return the trainer's facts; or make what a training needs.

    Raises:
        StillhouseError: of the kinds that students, methods and trainer name.
        Interrupted: SIGTERM; a checkpoint was saved.
    """
    # Progress bars would fill the end of the log, which errors show.
    disable_progress_bar()
    with (
        join_ranks(job.runtime.device) as ranks,
        exclusive(job.work_dir) if ranks.is_first else nullcontext(),
        _tracked(job, ranks) as tracked,
        ExitStack() as resources,
    ):
        ranks.barrier()
        make_repeatable(job.trainer.seed, job.runtime.num_threads, ranks.device)
        if job.method == "scores":
            return score_rows(job, ranks, progress)
        # Weights that will be sharded are loaded on the CPU; 4-bit weights on their device.
        is_sharded = ranks.size > 1 and job.student.parameters != "qlora"
        device = torch.device("cpu") if is_sharded else ranks.device
        start_rendering()
        progress.update(job.method, 0, None, doing=f"loading {job.student_ref}")
        student = load_student(job.student_ref, job.student, device, job.trainer.seed)
        if ranks.is_first and student.model is not student.causal_lm:
            summary = adapter_summary(student.model)
            logger.info("%s", summary)
            tracked.set_tags({"adapter": summary})
        # The same seed until here, so that all ranks hold the same student; dropout differs by rank.
        torch.manual_seed(job.trainer.seed + ranks.rank)

        if job.method == "student_rollouts":
            return record_rollouts(job, student, tracked, progress)
        if job.method == "pair":
            return measure_pair(job, student, progress)
        progress.update(job.method, 0, None, doing=_PREPARING[job.method])

        def averaged() -> AbstractContextManager[None]:
            """Use the running mean of the weights, which the trainer below makes."""
            return trainer.weights.averaged()

        method = _method(job, student, ranks, tracked, averaged, resources, progress)
        if ranks.is_first:
            _tell_dropout(student, is_on=method.uses_dropout)
        trainer = build_trainer(
            method,
            student,
            job.config,
            work_dir=job.work_dir,
            identity=job.identity(),
            ranks=ranks,
            progress=progress,
            listener=tracked,
            tracking_run_id=job.tracking.run_id if job.tracking else None,
            generations=load_generations(job, student, ranks, tracked, resources),
            alarms=alarms_of(job.on_policy) if job.on_policy else None,
        )
        facts = trainer.run()
        trainer.watch.say(facts["steps"], "saving the student")
        with trainer.weights.averaged():
            job.output_dir.mkdir(parents=True, exist_ok=True)
            student.save(job.output_dir, ranks)
            if ranks.is_first:
                write_results(job, student.base_ref, facts)
                logger.info("wrote the student to %s", job.output_dir)
            ranks.barrier()
        trainer.watch.show(facts["steps"])
        return facts


def _tell_dropout(student: Student, *, is_on: bool) -> None:
    for name, rate in student.dropout_rates().items():
        if is_on:
            consequence = (
                "on: other microbatches or processes draw it anew, which changes results by more than rounding"
            )
        else:
            consequence = "off: the student's probabilities are compared with others, so it computes as it samples"
        logger.info("%s %g is %s", name, rate, consequence)


def _tracked(job: TrainJob, ranks: Ranks) -> TrackedRun:
    """Return the MLflow run for the first rank; the others record nothing."""
    target = job.tracking if ranks.is_first else None
    store = ArtifactStore(job.runtime.store, job.runtime.scratch)
    return attach(target.uri if target else None, target.run_id if target else None, store.root)


def _method(
    job: TrainJob,
    student: Student,
    ranks: Ranks,
    listener: Listener,
    averaged: Callable[[], AbstractContextManager[None]],
    resources: ExitStack,
    progress: Progress,
) -> Method:
    if job.method == "sft":
        assert job.sft is not None
        return load_sft(
            job.dataset_folder,
            student.tokenizer,
            job.sft,
            sample_length(job.student.max_length, student.max_context),
            work_dir=job.work_dir,
            num_processes=job.runtime.num_threads,
            ranks=ranks,
            scores_folder=job.scores_folder,
        )
    return load_on_policy(job, student, listener, averaged, resources, progress, ranks)
