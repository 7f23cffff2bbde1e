"""The teacher's reading of what the student's template rendered, against the rendering of its own template.

A chat teacher that reads another form than it was trained on scores the same answer differently: by 0.287 nats a token
for a base student's "User: ... Assistant:", whose training then failed (tinker-cookbook#796).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyTeacher
from stillhouse.errors import ConfigError, StillhouseError
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.training.job import TrainJob
from stillhouse.training.on_policy.teachers.alignment import ByteAlignment
from stillhouse.training.on_policy.teachers.hint import Hint
from stillhouse.training.on_policy.teachers.teacher import Teacher
from stillhouse.training.on_policy.teachers.views import OtherVocabulary
from stillhouse.training.on_policy.teachers.vocabulary import num_shared_ids, stop_token_warning
from stillhouse.training.pair.finding import PairFinding
from stillhouse.training.pair.samples import StudentSamples, end_places, sampled
from stillhouse.types import Sample

_NATS: Final = 0.05
"""A token, from which another rendering matters."""


class Reading(NamedTuple):
    """The teacher as its own tokenizer and template render."""

    rendering: PairFinding
    stop_warning: str | None = None
    """`stop_token_warning`."""
    num_shared: int | None = None
    """Ids that are shared, where the vocabularies differ in added tokens."""


def read_by_template(
    settings: OnPolicyTeacher,
    samples: StudentSamples,
    job: TrainJob,
    teacher: Teacher,
    requests: Sequence[Sample],
    scores: Sequence[SequenceScores],
) -> Reading:
    """Compare what `teacher` has read, `requests` with their `scores`, with what its own template makes of them."""
    name = f"{settings.name}: rendering"
    if settings.reads_own_template:
        return Reading(PairFinding(name, "fine", "it reads its own template's rendering"))
    # What a server calls its model need not be a folder or a name of the hub, which is asked for a minute if offline.
    if settings.model is None or not (settings.is_here or set("/:") & set(settings.model)):
        reason = "its tokenizer is not at hand: give the folder or hub name as `model`"
        return Reading(PairFinding(name, "unknown", f"its own rendering is not known: {reason}"))
    stop_warning = num_shared = None
    try:
        ours, theirs = samples.student.tokenizer, _tokenizer(settings, job)
        if settings.alignment == "ids":
            num_shared = num_shared_ids(settings.name, theirs, ours)
        generation = samples.student.causal_lm.generation_config
        stop_warning = stop_token_warning(ours, theirs, generation, None, teacher_name=settings.name)
        hint = None if settings.hint is None else Hint(settings.hint, settings.name)
        own = OtherVocabulary(ours, theirs, samples.ends, hint)
        views = [own.view(one, samples.metadata.get(one.prompt_id)) for one in samples.trajectories]
        nats = _difference(teacher, requests, scores, views, ByteAlignment.between(ours, theirs, samples.ends))
    except (TemplateError, StillhouseError) as error:
        # A server may call its model as it likes, and a template may refuse what the student wrote.
        unknown = PairFinding(name, "unknown", f"its own rendering is not known: {error}")
        return Reading(unknown, stop_warning, num_shared)
    return Reading(rendering_finding(settings.name, nats), stop_warning, num_shared)


def _difference(
    teacher: Teacher,
    requests: Sequence[Sample],
    scores: Sequence[SequenceScores],
    own: Sequence[Sample],
    alignment: ByteAlignment,
) -> float | None:
    """Return the mean of log teacher after its own rendering less after the student's; None if they are alike.

    `alignment` is of tokens that the two renderings of a turn may have cut in other places.
    """
    if all(_read(request.read) == _read(view) for request, view in zip(requests, own, strict=True)):
        return None
    answers = teacher.start(own).result()
    aligned_N = np.concatenate(
        [alignment.align(one, view, answer.logprobs) for one, view, answer in zip(requests, own, answers, strict=True)]
    )
    # Ends are compared by themselves: the two templates may end a turn with different tokens.
    is_text_N = ~end_places(requests, frozenset(alignment.ends))
    difference_N = (aligned_N - sampled(scores))[is_text_N]
    return float(difference_N.mean()) if len(difference_N) else 0.0


def _read(view: Sample) -> list[int]:
    """Return the tokens that were not sampled: a turn may be written in other tokens of the same text."""
    return [token for token, is_sampled in zip(view.token_ids, view.loss_mask, strict=True) if not is_sampled]


def _tokenizer(settings: OnPolicyTeacher, job: TrainJob) -> PreTrainedTokenizerBase:
    """Return the teacher's, whose template is told the same as the student's if it knows those variables."""
    assert settings.model is not None
    if settings.chat_template_kwargs:
        return load_tokenizer(settings.model, settings.chat_template_kwargs)
    try:
        return load_tokenizer(settings.model, job.student.chat_template_kwargs)
    except ConfigError:
        return load_tokenizer(settings.model)


def rendering_finding(name: str, nats: float | None) -> PairFinding:
    """Judge the nats a token that the teacher's own rendering makes; None where both render alike."""
    name = f"{name}: rendering"
    if nats is None:
        return PairFinding(name, "fine", "both templates render alike")
    seen = f"{nats:+.3f} nats a token by its own template against the student's rendering"
    remedy = "set `template: own` for this teacher in on_policy.teachers, or give the student its chat template"
    if nats > _NATS:
        return PairFinding(name, "change", f"{seen}: it reads a form that it does not know; {remedy}")
    if nats < -_NATS:
        reason = "the student's answers suit its own. If the teacher does not answer well, its chat_template is not the"
        return PairFinding(name, "change", f"{seen}: {reason} one it was trained with; if it does, {remedy}")
    return PairFinding(name, "fine", f"{seen}: no matter")
