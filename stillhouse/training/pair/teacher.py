"""How one teacher scores what the student sampled."""

import logging
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyTeacher
from stillhouse.errors import ConfigError, StillhouseError
from stillhouse.training.job import TrainJob
from stillhouse.training.on_policy.teachers.alignment import ByteAlignment
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.on_policy.teachers.load import load_teachers
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest, Teacher, TeacherScores
from stillhouse.training.on_policy.teachers.views import OtherVocabulary
from stillhouse.training.on_policy.teachers.vocabulary import num_shared_ids, stop_token_warning
from stillhouse.training.pair.agreement import agreement, end_scores, one_sided
from stillhouse.training.pair.figures import TeacherFigures
from stillhouse.training.pair.rendering import compare_renderings, prompt_opening
from stillhouse.training.pair.samples import StudentSamples, request_of
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import PromptMetadata

logger = logging.getLogger(__name__)


def measure_teacher(settings: OnPolicyTeacher, samples: StudentSamples, job: TrainJob) -> TeacherFigures:
    """The figures of one teacher, which is loaded for that time alone; what it refuses is one of them."""
    figures = TeacherFigures(settings.name, settings.kind, settings.alignment, settings.reads_own_template)
    assert job.on_policy is not None
    try:
        router = load_teachers(
            job.on_policy.model_copy(update={"teachers": (settings,)}),
            samples.student,
            default_ref=None,
            averaged=nullcontext,
            runtime=job.runtime,
            budget=job.budget,
        )
        with closing(router):
            return _scored(figures, settings, samples, job, router)
    except StillhouseError as error:
        logger.warning("teacher %r: %s", settings.name, error)
        return replace(figures, refusal=str(error))


def _scored(
    figures: TeacherFigures, settings: OnPolicyTeacher, samples: StudentSamples, job: TrainJob, router: TeacherRouter
) -> TeacherFigures:
    rows = [
        (trajectory, own, metadata)
        for trajectory, own in zip(samples.trajectories, samples.scores, strict=True)
        if router.select(metadata := samples.metadata.get(trajectory.prompt_id)) is not None
    ]
    if not rows:
        return figures
    requests = [replace(request_of(one), view=router.view(one, metadata)) for one, _, metadata in rows]
    own_scores = [own for _, own, _ in rows]
    teacher = router.by_name[settings.name]
    started = time.monotonic()
    scores = teacher.start(requests).result()
    figures = replace(
        figures,
        scoring_s=time.monotonic() - started,
        agreement=agreement(requests, own_scores, scores),
        ends=end_scores(requests, samples.ends, own_scores, scores),
    )
    # What a server calls its model need not be a folder or a name of the hub, which is asked for a minute if offline.
    if settings.model is None or not (settings.is_local or set("/:") & set(settings.model)):
        return figures
    conversations = [(trajectory, metadata) for trajectory, _, metadata in rows]
    try:
        return _with_template(figures, settings, samples, job, teacher, conversations, requests, scores)
    except (TemplateError, StillhouseError) as error:
        # A server may call its model as it likes, and a template may refuse what the student wrote.
        return replace(figures, template_problem=str(error))


def _with_template(
    figures: TeacherFigures,
    settings: OnPolicyTeacher,
    samples: StudentSamples,
    job: TrainJob,
    teacher: Teacher,
    conversations: Sequence[tuple[SampledTrajectory, PromptMetadata | None]],
    requests: Sequence[ScoreRequest],
    scores: Sequence[TeacherScores],
) -> TeacherFigures:
    """Adds what the teacher's own tokenizer and template tell.

    Raises:
        ConfigError: they cannot be read here.
        TemplateError, TrainingError: the template refuses a conversation.
    """
    ours, theirs = samples.student.tokenizer, _tokenizer(settings, job)
    figures = replace(figures, opening=prompt_opening(theirs))
    if settings.alignment == "ids" and (num_shared := num_shared_ids(settings.name, theirs, ours)) is not None:
        figures = replace(figures, one_sided=one_sided(num_shared, samples.scores, scores))
    if settings.reads_own_template:
        return figures
    generation = samples.student.causal_lm.generation_config
    figures = replace(
        figures, stop_warning=stop_token_warning(ours, theirs, generation, None, teacher_name=settings.name)
    )
    hint = None if settings.hint is None else Hint(settings.hint, settings.name)
    own = OtherVocabulary(ours, theirs, samples.ends, hint)
    try:
        views = [own.view(trajectory, metadata) for trajectory, metadata in conversations]
    except StillhouseError as error:
        return replace(figures, template_problem=str(error))
    alignment = ByteAlignment.between(ours, theirs, samples.ends)
    return replace(figures, rendering=compare_renderings(teacher, requests, scores, views, alignment))


def _tokenizer(settings: OnPolicyTeacher, job: TrainJob) -> PreTrainedTokenizerBase:
    """The teacher's, whose template is told the same as the student's if it knows those variables."""
    assert settings.model is not None
    if settings.chat_template_kwargs:
        return load_tokenizer(settings.model, settings.chat_template_kwargs)
    try:
        return load_tokenizer(settings.model, job.student.chat_template_kwargs)
    except ConfigError:
        return load_tokenizer(settings.model)
