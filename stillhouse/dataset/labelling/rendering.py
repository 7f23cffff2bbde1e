"""What the student's chat template makes of a conversation: its length, what is supervised, and what goes wrong."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stillhouse.chat.round_trip import RoundTrip
from stillhouse.chat.template import RenderedSample, Span, TemplateError, render_spans, tokenise_spans
from stillhouse.dataset.labelling.subject import Subject

_LABELS: Final = ("num_tokens", "num_supervised_tokens", "template_problem")


class RenderLabels:
    """Labels `num_tokens`, `num_supervised_tokens` and `template_problem`.

    A conversation that the template refuses, or that masks cannot follow, has a problem and no counts. One whose tool
    calls or content do not come back from the rendered text has both.

    Args:
        tokenizer_ref: The student.

    Raises:
        ConfigError: The tokenizer cannot be loaded or has no chat template.
    """

    def __init__(self, tokenizer_ref: str) -> None:
        # Imports torch, which takes seconds.
        from stillhouse.chat.tokenizer import load_tokenizer

        self._tokenizer = load_tokenizer(tokenizer_ref)
        self._round_trip = RoundTrip(self._tokenizer)

    def __call__(self, subjects: Sequence[Subject]) -> Mapping[str, Sequence[Any]]:
        rendered = [self._render(subject) for subject in subjects]
        sound = [spans for spans in rendered if not isinstance(spans, TemplateError)]
        samples = iter(tokenise_spans(self._tokenizer, sound))
        measured = [
            self._measure(subject, spans, spans if isinstance(spans, TemplateError) else next(samples))
            for subject, spans in zip(subjects, rendered, strict=True)
        ]
        return {name: [row[place] for row in measured] for place, name in enumerate(_LABELS)}

    def _render(self, subject: Subject) -> list[Span] | TemplateError:
        try:
            return render_spans(self._tokenizer, subject.trajectory.messages, subject.trajectory.tools)
        except TemplateError as error:
            return error

    def _measure(
        self, subject: Subject, spans: list[Span] | TemplateError, sample: RenderedSample | TemplateError
    ) -> tuple[int | None, int | None, str | None]:
        if isinstance(spans, TemplateError) or isinstance(sample, TemplateError):
            return None, None, str(sample)
        problem = self._round_trip.problem(subject.trajectory.messages, subject.trajectory.tools, spans)
        return len(sample.token_ids), sum(sample.loss_mask), problem
