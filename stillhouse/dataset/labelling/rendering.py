"""What the student's chat template makes of a conversation: its length, what is supervised, and what goes wrong."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.round_trip import RoundTrip
from stillhouse.chat.samples import RenderedSample, Span, render_all_spans, tokenise_spans
from stillhouse.dataset.labelling.subject import Subject

_LABELS: Final = ("num_tokens", "num_supervised_tokens", "template_problem")


class RenderLabels:
    """Labels `num_tokens`, `num_supervised_tokens` and `template_problem`.

    A conversation is as long as the longest of its samples, and what is supervised is counted over all of them. One
    that the template refuses, or that masks cannot follow, has a problem and no counts. One whose tool calls or content
    do not come back from the rendered text has both.

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
        conversations = [(subject.trajectory.messages, subject.trajectory.tools) for subject in subjects]
        rendered = render_all_spans(self._tokenizer, conversations)
        sound = [texts for texts in rendered if not isinstance(texts, TemplateError)]
        tokens = iter(tokenise_spans(self._tokenizer, [spans for texts in sound for spans in texts]))
        measured = [
            (None, None, str(texts))
            if isinstance(texts, TemplateError)
            else self._measure(subject, texts, list(islice(tokens, len(texts))))
            for subject, texts in zip(subjects, rendered, strict=True)
        ]
        return {name: [row[place] for row in measured] for place, name in enumerate(_LABELS)}

    def _measure(
        self, subject: Subject, texts: list[list[Span]], tokens: list[RenderedSample | TemplateError]
    ) -> tuple[int | None, int | None, str | None]:
        samples = [sample for sample in tokens if isinstance(sample, RenderedSample)]
        if len(samples) < len(tokens):
            return None, None, str(next(error for error in tokens if isinstance(error, TemplateError)))
        problem = self._round_trip.problem(subject.trajectory.messages, subject.trajectory.tools, texts)
        longest = max(len(sample.token_ids) for sample in samples)
        return longest, sum(sum(sample.loss_mask) for sample in samples), problem
