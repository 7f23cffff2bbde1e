"""A teacher of the embedded task, simulated: it is always right, and lists the stories it was prompted with."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from examples.embedded.shop import Story
from tests.provider import ReceivedRequest, Reply, completion


def append_prompts(path: Path, stories: Sequence[Story]) -> None:
    """Adds prompts with their answers to a source of prompts."""
    with path.open("a", encoding="utf-8") as file:
        for story in stories:
            row = {"prompt": story.text, "metadata": {"expected_answer": str(story.answer), "tag": story.tag}}
            file.write(json.dumps(row) + "\n")


def shop_teacher(stories: Sequence[Story], prompted: list[str]) -> Callable[[ReceivedRequest], Reply]:
    """Takes each step of a story to the calculator, and then tells the answer.

    Args:
        stories: all that prompts may hold.
        prompted: the story of each request is appended.
    """
    by_text = {story.text: story for story in stories}

    def answer(request: ReceivedRequest) -> Reply:
        messages = request.body["messages"]
        story = by_text[next(m["content"] for m in messages if m["role"] == "user")]
        prompted.append(story.text)
        num_results = sum(m["role"] == "tool" for m in messages)
        if num_results == len(story.events):
            return Reply(completion(f"The answer is {story.answer}."))
        event, amount = story.events[num_results], story.start
        for done in story.events[:num_results]:
            amount = done.apply(amount, done.phrase.operator)
        expression = event.expression(amount, event.phrase.operator)
        return Reply(completion(tool_calls=[("calculator", json.dumps({"expression": expression}))]))

    return answer
