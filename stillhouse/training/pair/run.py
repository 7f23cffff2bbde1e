"""Measures a pair in the training process: the student samples a few prompts, and each of its teachers scores them."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyTeacher
from stillhouse.errors import ConfigError, InputError, StillhouseError
from stillhouse.progress.state import Progress
from stillhouse.store.records import read_metadata
from stillhouse.training.job import TrainJob
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.load import load_sampler
from stillhouse.training.on_policy.masks import sampled_runs
from stillhouse.training.on_policy.prompts import read_student_prompts
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.on_policy.teachers.alignment import ByteAlignment
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.on_policy.teachers.load import load_teachers
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.self_teacher import SelfTeacher
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest, Teacher, TeacherScores
from stillhouse.training.on_policy.teachers.views import OtherVocabulary
from stillhouse.training.on_policy.teachers.vocabulary import stop_token_warning
from stillhouse.training.pair.agreement import agreement, end_scores, sampled
from stillhouse.training.pair.figures import PairFigures, StudentFigures, TeacherFigures
from stillhouse.training.pair.rendering import compare_renderings, opening_of
from stillhouse.training.pair.settings import TOP_K
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject, PromptMetadata

logger = logging.getLogger(__name__)


def measure_pair(job: TrainJob, student: Student, progress: Progress) -> JsonObject:
    """Writes the `PairFigures` of the job's prompts to `job.output_dir`; returns facts.

    What a teacher refuses, its vocabulary or its server, is a figure and no error.

    Raises:
        StillhouseError: of the kinds that the sampler names.
        InputError: no prompt leaves room for an answer.
    """
    config = job.on_policy
    assert config is not None
    assert job.prompts_file is not None
    metadata = read_metadata(job.metadata_file) if job.metadata_file else {}
    total = 1 + len(config.teachers)
    progress.update(job.method, 0, total, doing="sampling")
    measuring = _Measuring(job, student, metadata, *_sample(job, student, metadata))
    teachers = []
    for settings in config.teachers:
        progress.update(job.method, 1 + len(teachers), total, doing=f"scoring with {settings.name}")
        teachers.append(measuring.teacher(settings))
    job.output_dir.mkdir(parents=True, exist_ok=True)
    PairFigures(measuring.student_figures(), tuple(teachers)).write(job.output_dir)
    progress.update(job.method, total, total)
    return {"rows": len(measuring.trajectories)}


def _sample(
    job: TrainJob, student: Student, metadata: dict[str, PromptMetadata]
) -> tuple[list[SampledTrajectory], float]:
    """One trajectory of each prompt, and the seconds that took."""
    config = job.on_policy
    assert config is not None
    assert job.prompts_file is not None
    prompts = read_student_prompts(job.prompts_file, config)
    sampler = load_sampler(job, config, student, student.max_context or job.student.max_length, metadata)
    started = time.monotonic()
    with TransformersEngines(student, config.max_concurrent).engine(0) as engine:
        trajectories = sampler.sample(engine, prompts, round_index=0)
    kept = [trajectory for trajectory in trajectories if trajectory.num_turns]
    if not kept:
        raise InputError(f"none of the {len(prompts)} prompts leaves room for an answer; shorten them")
    return kept, time.monotonic() - started


@dataclass(slots=True)
class _Measuring:
    """What the student sampled, and how it scores that itself."""

    job: TrainJob
    student: Student
    metadata: Mapping[str, PromptMetadata]
    trajectories: list[SampledTrajectory]
    sampling_s: float
    forward_s: float = 0.0
    _own_scores: list[TeacherScores] | None = None

    def own_scores(self) -> list[TeacherScores]:
        """The student's scores of its trajectories."""
        if self._own_scores is None:
            started = time.monotonic()
            self._own_scores = self._itself().start([_request(one) for one in self.trajectories]).result()
            self.forward_s = time.monotonic() - started
        return self._own_scores

    def student_figures(self) -> StudentFigures:
        runs = [run for one in self.trajectories for run in sampled_runs(one)]
        ends = stop_token_ids(self.student.tokenizer)
        requests = [_request(one) for one in self.trajectories]
        nll = -sampled(requests, self.own_scores()).mean()
        return StudentFigures(
            num_trajectories=len(self.trajectories),
            num_tokens=sum(map(len, runs)),
            num_inputs=sum(len(one.token_ids) for one in self.trajectories),
            ended_share=sum(run[-1] in ends for run in runs) / len(runs),
            nll=float(nll),
            vocabulary=len(self.student.tokenizer.get_vocab()),
            opening=opening_of(self.student.tokenizer),
            sampling_s=self.sampling_s,
            forward_s=self.forward_s,
        )

    def teacher(self, settings: OnPolicyTeacher) -> TeacherFigures:
        """The figures of one teacher, which is loaded for that time alone."""
        figures = TeacherFigures(settings.name, settings.kind, settings.alignment)
        config = self.job.on_policy
        assert config is not None
        try:
            router = load_teachers(
                config.model_copy(update={"teachers": (settings,)}),
                self.student,
                default_ref=None,
                work_dir=self.job.work_dir,
                averaged=nullcontext,
                runtime=self.job.runtime,
                budget=self.job.budget,
            )
            try:
                return self._scored(figures, settings, router)
            finally:
                router.close()
        except StillhouseError as error:
            logger.warning("teacher %r: %s", settings.name, error)
            return replace(figures, refusal=str(error))

    def _scored(self, figures: TeacherFigures, settings: OnPolicyTeacher, router: TeacherRouter) -> TeacherFigures:
        routed = [place for place, one in enumerate(self.trajectories) if router.select(self._of(one)) is not None]
        if not routed:
            return replace(figures, refusal=f"none of the {len(self.trajectories)} prompts sampled is routed to it")
        trajectories = [self.trajectories[place] for place in routed]
        requests = [_request(one, router, self._of(one)) for one in trajectories]
        own_scores = [self.own_scores()[place] for place in routed]
        teacher = router.by_name[settings.name]
        started = time.monotonic()
        scores = teacher.start(requests).result()
        figures = replace(
            figures,
            scoring_s=time.monotonic() - started,
            agreement=agreement(requests, own_scores, scores),
            ends=end_scores(requests, self._ends(), own_scores, scores),
        )
        return self._with_template(figures, settings, teacher, trajectories, requests, scores)

    def _with_template(
        self,
        figures: TeacherFigures,
        settings: OnPolicyTeacher,
        teacher: Teacher,
        trajectories: Sequence[SampledTrajectory],
        requests: Sequence[ScoreRequest],
        scores: Sequence[TeacherScores],
    ) -> TeacherFigures:
        """Adds what the teacher's own tokenizer and template tell, where they can be read."""
        if settings.model is None:
            return figures
        ours, ends = self.student.tokenizer, self._ends()
        try:
            theirs = self._tokenizer(settings)
            figures = replace(figures, opening=opening_of(theirs))
            if settings.alignment == "bytes":
                return figures
            generation = self.student.causal_lm.generation_config
            warning = stop_token_warning(ours, theirs, generation, None, teacher_name=settings.name)
            figures = replace(figures, stop_warning=warning)
            hint = None if settings.hint is None else Hint(settings.hint, settings.name)
            own = OtherVocabulary(ours, theirs, ends, hint)
            views = [own.view(one, self._of(one)) for one in trajectories]
            alignment = ByteAlignment.between(ours, theirs, ends)
            return replace(figures, rendering=compare_renderings(teacher, requests, scores, views, alignment))
        except (TemplateError, StillhouseError) as error:
            # A server may call its model as it likes, and a template may refuse what the student wrote.
            return replace(figures, template_problem=str(error))

    def _tokenizer(self, settings: OnPolicyTeacher) -> PreTrainedTokenizerBase:
        """The teacher's, whose template is told the same as the student's if it knows those variables."""
        assert settings.model is not None
        if settings.chat_template_kwargs:
            return load_tokenizer(settings.model, settings.chat_template_kwargs)
        try:
            return load_tokenizer(settings.model, self.job.student.chat_template_kwargs)
        except ConfigError:
            return load_tokenizer(settings.model)

    def _itself(self) -> SelfTeacher:
        config = self.job.on_policy
        assert config is not None
        return SelfTeacher(
            "student",
            0.0,
            self.student,
            nullcontext,
            temperature=config.temperature,
            batch_tokens=config.microbatch_tokens,
            top_k=TOP_K,
        )

    def _of(self, trajectory: SampledTrajectory) -> PromptMetadata | None:
        return self.metadata.get(trajectory.prompt_id)

    def _ends(self) -> frozenset[int]:
        return stop_token_ids(self.student.tokenizer)


def _request(
    trajectory: SampledTrajectory, router: TeacherRouter | None = None, metadata: PromptMetadata | None = None
) -> ScoreRequest:
    view = None if router is None else router.view(trajectory, metadata)
    return ScoreRequest(trajectory.token_ids, trajectory.loss_mask, trajectory.prompt_id, view)
