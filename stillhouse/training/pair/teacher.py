"""Measures how one teacher scores what the student sampled, and says what that means for the pair.

Dimensions: N sampled tokens, K most probable tokens of each model.
"""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from stillhouse.config import OnPolicyTeacher
from stillhouse.errors import StillhouseError
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.training.job import TrainJob
from stillhouse.training.on_policy.teachers.load import load_teachers
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.pair.finding import PairFinding
from stillhouse.training.pair.rendering import read_by_template
from stillhouse.training.pair.samples import StudentSamples, end_places, sampled

_WORST: Final = 0.05
"""Share of the tokens that are looked at as the worst."""
_ALIEN_DIFFERING: Final = 0.95
"""Share of places with another best token above which a teacher reads other tokens than the student wrote."""
_ALIEN_NATS: Final = 0.6
"""Part of the logarithm of the vocabulary that a guess costs; healthy pairs stay below a half of it."""
_END_RATIO: Final = 0.1
"""Of the teacher's probability of the student's ends to the student's own."""

logger = logging.getLogger(__name__)


def measure_teacher(
    settings: OnPolicyTeacher, samples: StudentSamples, job: TrainJob
) -> tuple[list[PairFinding], float]:
    """Return the findings of one teacher, which is loaded for that time alone, and the seconds that it scored."""
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
            return _scored(settings, samples, job, router)
    except StillhouseError as error:
        logger.warning("teacher %r: %s", settings.name, error)
        return [PairFinding(f"{settings.name}: tokens", "no", str(error))], 0.0


def _scored(
    settings: OnPolicyTeacher, samples: StudentSamples, job: TrainJob, router: TeacherRouter
) -> tuple[list[PairFinding], float]:
    kept = [router.select(samples.metadata.get(one.prompt_id)) is not None for one in samples.trajectories]
    samples = samples.part(kept)
    if not samples.trajectories:
        reason = "it loads; none of the prompts measured on is routed to it"
        return [PairFinding(f"{settings.name}: tokens", "unknown", reason)], 0.0
    own = samples.scores
    requests = [
        replace(request, teacher_view=router.view(one, samples.metadata.get(one.prompt_id)))
        for one, request in zip(samples.trajectories, samples.requests, strict=True)
    ]
    teacher = router.by_name[settings.name]
    started = time.monotonic()
    scores = teacher.start(requests).result()
    seconds = time.monotonic() - started
    found = agreement(own, scores)
    vocabulary, nll = len(samples.student.tokenizer.get_vocab()), float(-sampled(own).mean())
    rendering, stop_warning, num_shared = read_by_template(settings, samples, job, teacher, requests, scores)
    form = f"{vocabulary} ids shared" if settings.alignment == "ids" else "aligned by bytes"
    if num_shared is not None:
        form = f"the first {num_shared} ids are shared; training stops where the student samples another"
    findings = [tokens_finding(settings.name, found, nll, vocabulary, form), agreement_finding(settings.name, found)]
    if settings.kind != "base":
        findings.append(rendering)
    is_end_N = end_places(requests, samples.ends)
    chances = [float(np.exp(sampled(side)[is_end_N]).mean()) for side in (scores, own) if is_end_N.any()]
    findings.append(ends_finding(settings.name, chances, stop_warning))
    return findings, seconds


class Agreement(NamedTuple):
    """A teacher's scores of what the student sampled, against the student's own."""

    num_tokens: int
    kl: float
    """Mean of log student - log teacher, in nats a token: an estimate of the reverse KL."""
    worst_share: float
    """Part of the sum of the positive differences that is in the worst twentieth of the tokens."""
    nll: float
    """Mean of -log teacher."""
    best: tuple[int, float, float] | None
    """Most probable tokens compared at each place, the share of the student's that are among the teacher's, and the
    share of the places where the first differ; None where the teacher gives none."""


def agreement(student: Sequence[SequenceScores], teacher: Sequence[SequenceScores]) -> Agreement:
    """Return the figures of a teacher over all sampled tokens, each scored by both."""
    ours_N, theirs_N = sampled(student), sampled(teacher)
    positive_N = np.sort(np.clip(ours_N - theirs_N, 0.0, None))[::-1]
    worst, total = positive_N[: max(1, round(_WORST * len(positive_N)))].sum(), positive_N.sum()
    best = None
    ids = [_best_ids(scores) for scores in (student, teacher)]
    if all(len(ids_NK) == len(ours_N) for ids_NK in ids):
        width = min(ids_NK.shape[1] for ids_NK in ids)
        ours_NK, theirs_NK = (ids_NK[:, :width] for ids_NK in ids)
        shared_NK = (ours_NK[:, :, None] == theirs_NK[:, None, :]).any(axis=2)
        best = (width, float(shared_NK.mean()), float((ours_NK[:, 0] != theirs_NK[:, 0]).mean()))
    worst_share = float(worst / total) if total > 0.0 else 0.0
    return Agreement(len(ours_N), float((ours_N - theirs_N).mean()), worst_share, float(-theirs_N.mean()), best)


def _best_ids(scores: Sequence[SequenceScores]) -> np.ndarray:
    tops = [one.top.ids_NK for one in scores if one.top is not None]
    width = min((top.shape[1] for top in tops), default=0)
    return np.concatenate([top[:, :width] for top in tops]) if len(tops) == len(scores) else np.empty((0, 0))


def tokens_finding(name: str, found: Agreement, nll: float, vocabulary: int, form: str) -> PairFinding:
    """Judge if token ids, or bytes, mean the same to both, `nll` being the student's own in nats a token."""
    guess = math.log(vocabulary)
    differing = None if found.best is None else found.best[2]
    is_flat = differing is not None and differing >= _ALIEN_DIFFERING and found.nll >= _ALIEN_NATS * guess
    if found.nll < guess and not is_flat:
        return PairFinding(f"{name}: tokens", "fine", form)
    seen = f"the student's tokens cost the teacher {found.nll:.2f} nats each, where a guess costs {guess:.2f}"
    if nll >= _ALIEN_NATS * guess:
        detail = f"{seen}, and the student {nll:.2f}: it does not write language yet. Train it with SFT first"
        return PairFinding(f"{name}: tokens", "change", detail)
    seen += "" if differing is None else f", and the best tokens differ at {differing:.0%} of the places"
    return PairFinding(
        f"{name}: tokens",
        "no",
        f"{seen}: the ids mean something else to it, although the vocabularies call themselves the same. Check that "
        "its weights and tokenizer belong together, or take another teacher",
    )


def agreement_finding(name: str, found: Agreement) -> PairFinding:
    """Say how far both agree on what the student sampled: it is what training changes, and no alarm."""
    detail = (
        f"reverse KL {found.kl:.3f} nats a token, {found.worst_share:.0%} of it in the worst twentieth of "
        f"{found.num_tokens} tokens"
    )
    if found.best is not None:
        top_k, overlap, differing = found.best
        detail += f"; best tokens differ at {differing:.1%} of the places, {overlap:.0%} of the {top_k} best are shared"
    return PairFinding(f"{name}: agreement", "fine", detail)


def ends_finding(name: str, chances: Sequence[float], stop_warning: str | None) -> PairFinding:
    """Judge if both end their turns alike.

    `chances` are the mean probabilities of the end tokens that the student sampled, by the teacher and by the student,
    empty where no completion ended; the first sentence of `stop_token_warning` says at which tokens they stop.
    """
    seen = "no completion of the student ended"
    if chances:
        teacher, student = chances
        seen = f"the student's end tokens have a probability of {teacher:.2g} by the teacher, {student:.2g} by itself"
    if not chances and stop_warning is None:
        return PairFinding(f"{name}: ends", "unknown", seen)
    if chances and chances[0] >= _END_RATIO * chances[1]:
        return PairFinding(f"{name}: ends", "fine", f"both end alike: {seen}")
    reason = "the teacher ends its turns otherwise" if stop_warning is None else stop_warning.partition(". ")[0]
    return PairFinding(
        f"{name}: ends",
        "change",
        f"{seen}: {reason}, and the student would learn not to end. Start from the student's instruct variant, train "
        "with SFT on the teacher's rollouts first, or take another teacher",
    )
