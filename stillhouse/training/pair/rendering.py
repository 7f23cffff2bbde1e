"""How the teacher reads a conversation that the student's template rendered, against its own template's rendering.

A chat teacher that reads another form than it was trained on scores the same answer differently: by 0.287 nats a token
for a base student's "User: ... Assistant:", whose training then failed (tinker-cookbook#796).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from stillhouse.chat.template import render_text
from stillhouse.chat.thinking import is_closed, opening_of
from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.training.on_policy.teachers.alignment import ByteAlignment
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest, Teacher, TeacherScores
from stillhouse.training.pair.agreement import end_places, sampled
from stillhouse.training.pair.figures import Opening, RenderingFigures
from stillhouse.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_QUESTION: Final[list[Message]] = [{"role": "user", "content": "a"}]


def prompt_opening(tokenizer: "PreTrainedTokenizerBase") -> Opening:
    """What the template's generation prompt does with a thinking block; raises TemplateError where it renders none."""
    prompt = render_text(tokenizer, _QUESTION, None, add_generation_prompt=True)
    if is_closed(prompt):
        return "closed"
    return "open" if opening_of(prompt) else "none"


def compare_renderings(
    teacher: Teacher,
    requests: Sequence[ScoreRequest],
    scores: Sequence[TeacherScores],
    own: Sequence[TeacherView],
    alignment: ByteAlignment,
) -> RenderingFigures:
    """The difference that its own rendering makes to a teacher of the student's vocabulary.

    Args:
        teacher: scores `own`.
        requests: what it has scored.
        scores: of `requests`.
        own: the same trajectories by its own template.
        alignment: of tokens that the two renderings of a turn may have cut in other places.
    """
    if all(_read(request.read) == _read(view) for request, view in zip(requests, own, strict=True)):
        return RenderingFigures(differs=False)
    asked = [
        ScoreRequest(view.token_ids, view.loss_mask, one.prompt_id) for one, view in zip(requests, own, strict=True)
    ]
    answers = teacher.start(asked).result()
    aligned_N = np.concatenate(
        [
            alignment.align(TeacherView(one.token_ids, one.loss_mask), view, list(sampled([request], [answer])))
            for one, view, request, answer in zip(requests, own, asked, answers, strict=True)
        ]
    )
    # Ends are compared by themselves: the two templates may end a turn with different tokens.
    is_text_N = ~end_places(requests, frozenset(alignment.ends))
    difference_N = (aligned_N - sampled(requests, scores))[is_text_N]
    return RenderingFigures(differs=True, nats=float(difference_N.mean()) if len(difference_N) else 0.0)


def _read(view: TeacherView) -> list[int]:
    """The tokens that were not sampled: a turn may be written in other tokens of the same text."""
    return [token for token, is_sampled in zip(view.token_ids, view.loss_mask, strict=True) if not is_sampled]
