"""Presence of a final answer, and lengths of the texts."""

from typing import Final

from stillhouse.labels.declare import Column, Filter, Kind, Label, Limit, Measure, Reason, between, outside

ANSWER: Final = Label(
    place=20,
    columns=(
        Column("has_answer", Kind.FLAG, "whether the last message is the assistant's, calls no tool and holds text",
               compute=lambda texts: texts.answer is not None),
        Column("prompt_chars", Kind.WHOLE, "characters of the prompt's messages",
               Measure("Prompt characters", "count", is_drawn=False), lambda texts: len(texts.prompt_text)),
        Column("answer_chars", Kind.WHOLE, "characters of the final answer; null without one",
               Measure("Answer characters", "count"),
               lambda texts: None if texts.answer is None else len(texts.answer)),
        Column("sampled_chars", Kind.WHOLE, "characters the model wrote: answers, reasoning and tool calls",
               Measure("Sampled characters", "count", is_drawn=False), lambda texts: len(texts.sampled_text)),
    ),
    filters=(
        Filter(Reason("no_answer", "the last message calls tools, is not the assistant's, or holds no text"),
               "with an answer", ("has_answer",), lambda rows, _: ~rows["has_answer"].fillna(False), place=20),
        *outside("answer_chars", Reason("answer_too_short", "the final answer has too few characters"),
            Reason("answer_too_long", "the final answer has too many characters"),
            "with an answer of the right length", Limit("answer_chars", between(int, ge=1),
            "Fewest and most characters of the final answer, such as `[2, 8000]`; null sets no limit. The student "
            "learns the lengths it sees."), 70),
    ),
)  # fmt: skip
