"""The task "shop": short stories about a stock of goods whose answer needs a calculator.

A story has a start amount and one to three events. The gold conversation calls `calculator` once per event, each
expression starting from the last result, and ends with "The answer is N."
"""

import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Operator = Literal["+", "-", "*"]
Message = dict[str, Any]

CALCULATOR_SCHEMA: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
}

NAMES: Final = (
    *("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Iris", "Jack"),
    *("Karen", "Leo", "Maria", "Noah", "Olga", "Peter", "Ruth", "Sam", "Tina", "Victor"),
)
ITEMS: Final = (
    *("apples", "pears", "books", "candles", "stamps", "marbles", "pencils", "buttons"),
    *("lemons", "cookies", "coins", "shells", "cards", "tickets", "bottles", "eggs"),
)
MAX_AMOUNT: Final = 99_999
NUM_EVENTS: Final = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase for an event; `{n}` is one number, `{k}` and `{m}` are packs and their size."""

    text: str
    operator: Operator

    @property
    def counts_packs(self) -> bool:
        """Return whether the change is `k * m`."""
        return "{m}" in self.text


PHRASES: Final = (
    Phrase("buys {n} more", "+"),
    Phrase("finds {n} more", "+"),
    Phrase("collects {n} more", "+"),
    Phrase("receives another {n}", "+"),
    Phrase("picks up {n}", "+"),
    Phrase("wins {n}", "+"),
    Phrase("sells {n}", "-"),
    Phrase("loses {n}", "-"),
    Phrase("gives away {n}", "-"),
    Phrase("throws out {n}", "-"),
    Phrase("breaks {n}", "-"),
    Phrase("lends {n} to a friend", "-"),
    Phrase("ends up with {k} times as many", "*"),
    Phrase("grows the stock to {k} times its size", "*"),
    Phrase("multiplies the stock by {k}", "*"),
    Phrase("has a lucky day and the stock becomes {k} times as large", "*"),
    Phrase("buys {k} bags of {m}", "+"),
    Phrase("unpacks {k} boxes of {m}", "+"),
    Phrase("is given {k} packs of {m}", "+"),
    Phrase("orders {k} crates of {m}", "+"),
    Phrase("ships {k} crates of {m}", "-"),
    Phrase("donates {k} bags of {m}", "-"),
    Phrase("sends back {k} boxes of {m}", "-"),
    Phrase("hands out {k} packs of {m}", "-"),
)
# Every operator form has an even number of phrases, so every second phrase is half of each form.
SCRAMBLED_PHRASES: Final = frozenset(PHRASES[1::2])
_CONNECTIVES: Final = ("", "Then ", "After that ")


@dataclass(frozen=True, slots=True)
class Event:
    """One change of the stock: a phrase and its numbers (`n`, or `k`, or `k` and `m`)."""

    phrase: Phrase
    numbers: tuple[int, ...]

    def expression(self, amount: int, operator: Operator) -> str:
        """Return the calculator's input for this event from `amount`, for instance `489 - 5 * 12`."""
        return f"{amount} {operator} " + " * ".join(map(str, self.numbers))

    def apply(self, amount: int, operator: Operator) -> int:
        """Return the amount after this event; equals the value of `expression`."""
        change = math.prod(self.numbers)
        if operator == "+":
            return amount + change
        return amount - change if operator == "-" else amount * change


@dataclass(frozen=True, slots=True)
class Story:
    """A question with its hidden structure."""

    name: str
    item: str
    start: int
    events: tuple[Event, ...]

    @property
    def text(self) -> str:
        sentences = []
        for connective, event in zip(_CONNECTIVES, self.events, strict=False):
            first, last = event.numbers[0], event.numbers[-1]
            sentences.append(f"{connective}{self.name} {event.phrase.text.format(n=first, k=first, m=last)}.")
        return (
            f"{self.name} has {self.start} {self.item}. {' '.join(sentences)} "
            f"How many {self.item} does {self.name} have now?"
        )

    @property
    def operators(self) -> tuple[Operator, ...]:
        return tuple(event.phrase.operator for event in self.events)

    @property
    def answer(self) -> int:
        amount = self.start
        for event in self.events:
            amount = event.apply(amount, event.phrase.operator)
        return amount

    @property
    def tag(self) -> str:
        return f"{len(self.events)}-event" + ("s" if len(self.events) > 1 else "")

    @property
    def is_reserved(self) -> bool:
        """Return whether it is one in sixteen, by a hash of its text, which are for prompts and never trained on."""
        return hashlib.sha256(self.text.encode()).digest()[0] < 16


def draw_story(rng: random.Random) -> Story:
    """Return a story with one to three events; amounts stay within 0 and `MAX_AMOUNT` throughout."""
    start = amount = rng.randint(10, 999)
    events: list[Event] = []
    num_events = rng.choice(NUM_EVENTS)
    while len(events) < num_events:
        event = _draw_event(rng, rng.choice(PHRASES))
        after = event.apply(amount, event.phrase.operator)
        if 0 <= after <= MAX_AMOUNT:
            events.append(event)
            amount = after
    return Story(rng.choice(NAMES), rng.choice(ITEMS), start, tuple(events))


def _draw_event(rng: random.Random, phrase: Phrase) -> Event:
    if phrase.counts_packs:
        return Event(phrase, (rng.randint(2, 9), rng.randint(2, 20)))
    if phrase.operator == "*":
        return Event(phrase, (rng.randint(2, 9),))
    # A number of digits first, or nine in ten would have three and short ones would be rare.
    return Event(phrase, (rng.randint(1, 10 ** rng.randint(1, 3) - 1),))


def draw_stories(rng: random.Random, *, reserved: bool) -> Iterator[Story]:
    """Yield stories without end: the reserved ones (prompts), or the others (training corpora)."""
    while True:
        story = draw_story(rng)
        if story.is_reserved == reserved:
            yield story


def scrambled_operators(story: Story, rng: random.Random) -> tuple[Operator, ...]:
    """Return the story's operators with those of `SCRAMBLED_PHRASES` drawn at random."""
    return tuple(
        rng.choice(_candidates(event)) if event.phrase in SCRAMBLED_PHRASES else event.phrase.operator
        for event in story.events
    )


def slipped_operators(story: Story, rng: random.Random) -> tuple[Operator, ...]:
    """Return the story's operators with one of them, at a random event, replaced by a wrong one."""
    operators = list(story.operators)
    slip = rng.randrange(len(operators))
    wrong = [operator for operator in _candidates(story.events[slip]) if operator != operators[slip]]
    operators[slip] = rng.choice(wrong)
    return tuple(operators)


def _candidates(event: Event) -> tuple[Operator, ...]:
    # A product of two stocks would run to ten digits, so only a small factor may be multiplied by mistake.
    return ("+", "-", "*") if event.phrase.operator == "*" else ("+", "-")


def conversation(story: Story, operators: Sequence[Operator] | None = None) -> list[Message]:
    """Return the whole conversation in OpenAI form: question, a calculator call and its result per event, answer.

    `operators` are written in place of the right ones; results and answer follow from them, so a wrong operator gives a
    wrong but coherent conversation.
    """
    messages: list[Message] = [{"role": "user", "content": story.text}]
    amount = story.start
    chosen = story.operators if operators is None else operators
    for index, (event, operator) in enumerate(zip(story.events, chosen, strict=True), start=1):
        arguments = json.dumps({"expression": event.expression(amount, operator)})
        function = {"name": "calculator", "arguments": arguments}
        call = {"id": f"call_{index}", "type": "function", "function": function}
        amount = event.apply(amount, operator)
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(amount)})
    messages.append({"role": "assistant", "content": f"The answer is {amount}."})
    return messages


def draw_prompts(rng: random.Random, num_prompts: int) -> list[dict[str, Any]]:
    """Return rows of a prompts file: distinct reserved stories with `expected_answer` and `tag` as metadata."""
    rows: dict[str, dict[str, Any]] = {}
    for story in draw_stories(rng, reserved=True):
        if len(rows) == num_prompts:
            break
        metadata = {"expected_answer": str(story.answer), "tag": story.tag}
        rows.setdefault(story.text, {"prompt": story.text, "metadata": metadata})
    return list(rows.values())
