import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable

from examples.embedded.shop import (
    MAX_AMOUNT,
    PHRASES,
    SCRAMBLED_PHRASES,
    Event,
    Phrase,
    Story,
    conversation,
    draw_stories,
    scrambled_operators,
    slipped_operators,
)


def expressions(messages: list[dict]) -> list[str]:
    calls = [call for message in messages for call in message.get("tool_calls", [])]
    return [json.loads(call["function"]["arguments"])["expression"] for call in calls]


def results(messages: list[dict]) -> list[int]:
    return [int(message["content"]) for message in messages if message["role"] == "tool"]


def test_a_story_told_by_hand_has_the_expected_text_conversation_and_answer():
    events = (Event(Phrase("buys {n} more", "+"), (77,)), Event(Phrase("ships {k} crates of {m}", "-"), (5, 12)))
    story = Story("Anna", "apples", 412, events)
    assert story.text == (
        "Anna has 412 apples. Anna buys 77 more. Then Anna ships 5 crates of 12. How many apples does Anna have now?"
    )
    messages = conversation(story)
    assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"expression": "412 + 77"}'
    assert expressions(messages) == ["412 + 77", "489 - 5 * 12"]
    assert results(messages) == [489, 429]
    assert messages[-1]["content"] == "The answer is 429."
    assert (story.answer, story.tag) == (429, "2-events")
    called = [message["tool_calls"][0]["id"] for message in messages if "tool_calls" in message]
    assert called == [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert len(set(called)) == 2


def test_every_result_is_the_value_of_its_expression_and_the_last_one_is_the_answer():
    for story in itertools.islice(draw_stories(random.Random(5), reserved=True), 500):
        messages = conversation(story)
        assert results(messages) == [eval(text) for text in expressions(messages)]
        assert results(messages)[-1] == story.answer
        assert all(0 <= amount <= MAX_AMOUNT for amount in results(messages))


def test_scrambled_phrases_are_half_of_every_operator_form():
    def counts(phrases: Iterable[Phrase]) -> Counter:
        return Counter((phrase.operator, phrase.counts_packs) for phrase in phrases)

    assert counts(PHRASES) == counts(SCRAMBLED_PHRASES) + counts(SCRAMBLED_PHRASES)


def test_scrambling_changes_only_scrambled_phrases_and_stays_coherent():
    rng = random.Random(6)
    seen = {True: 0, False: 0}
    for story in itertools.islice(draw_stories(rng, reserved=False), 500):
        written = scrambled_operators(story, rng)
        for event, operator in zip(story.events, written, strict=True):
            assert event.phrase in SCRAMBLED_PHRASES or operator == event.phrase.operator
            if event.phrase in SCRAMBLED_PHRASES:
                seen[operator == event.phrase.operator] += 1
        messages = conversation(story, written)
        assert results(messages) == [eval(text) for text in expressions(messages)]
        assert messages[-1]["content"] == f"The answer is {results(messages)[-1]}."
    assert min(seen.values()) > 100


def test_a_slip_is_exactly_one_wrong_operator():
    rng = random.Random(7)
    for story in itertools.islice(draw_stories(rng, reserved=False), 200):
        written = slipped_operators(story, rng)
        assert sum(slip != right for slip, right in zip(written, story.operators, strict=True)) == 1
