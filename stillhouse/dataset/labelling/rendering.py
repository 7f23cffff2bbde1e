"""Labels from rendering with the student's chat template: length, supervised tokens, and problems."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.round_trip import RoundTrip
from stillhouse.chat.samples import RenderedSample, Span, render_all_spans, tokenise_spans
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config.section import ChatTemplateKwargs
from stillhouse.dataset.label_input import LabelInput

_LABELS: Final = ("num_tokens", "num_supervised_tokens", "template_problem")


class RenderLabels:
    """Labels `num_tokens`, `num_supervised_tokens` and `template_problem`.

    The length is the longest sample's; supervised tokens are counted over all samples. A conversation that the
    template refuses, or that masks cannot follow, has a problem and no counts. One whose tool calls or content cannot
    be recovered from the rendered text has both. Raises ConfigError if the tokenizer cannot be loaded or has no chat
    template.
    """

    def __init__(self, tokenizer_ref: str, chat_template_kwargs: ChatTemplateKwargs) -> None:
        self._tokenizer = load_tokenizer(tokenizer_ref, chat_template_kwargs)
        self._round_trip = RoundTrip(self._tokenizer)

    def __call__(self, inputs: Sequence[LabelInput]) -> Mapping[str, Sequence[Any]]:
        conversations = [(item.trajectory.messages, item.trajectory.tools) for item in inputs]
        rendered = render_all_spans(self._tokenizer, conversations)
        sound = [texts for texts in rendered if not isinstance(texts, TemplateError)]
        tokens = iter(tokenise_spans(self._tokenizer, [spans for texts in sound for spans in texts]))
        measured = [
            (None, None, str(texts))
            if isinstance(texts, TemplateError)
            else self._measure(item, texts, list(islice(tokens, len(texts))))
            for item, texts in zip(inputs, rendered, strict=True)
        ]
        return {name: [row[place] for row in measured] for place, name in enumerate(_LABELS)}

    def _measure(
        self, item: LabelInput, texts: list[list[Span]], tokens: list[RenderedSample | TemplateError]
    ) -> tuple[int | None, int | None, str | None]:
        samples = [sample for sample in tokens if isinstance(sample, RenderedSample)]
        if len(samples) < len(tokens):
            return None, None, str(next(error for error in tokens if isinstance(error, TemplateError)))
        problem = self._round_trip.problem(item.trajectory.messages, item.trajectory.tools, texts)
        longest = max(len(sample.token_ids) for sample in samples)
        return longest, sum(sum(sample.loss_mask) for sample in samples), problem
