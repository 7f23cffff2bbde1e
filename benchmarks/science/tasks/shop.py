"""The task "shop" of the embedded models, which call a calculator, with its tool's output to be learnt or not.

Output that is to be learnt is put inside the assistant's own message, as the very text the template makes of a tool's
turn: the tokens of both forms are the same, only who is taken to have said them differs.
"""

import itertools
import random
from collections.abc import Sequence
from typing import Final

from stillhouse.embedded.shop import CALCULATOR_SCHEMA, conversation, draw_stories
from stillhouse.types import JsonObject

MAX_TOKENS: Final = 48
"""Of one completion."""
MAX_TURNS: Final = 6


def rows(count: int, seed: int, *, with_output: bool) -> list[JsonObject]:
    """Right conversations to fine-tune on.

    Args:
        count: how many.
        seed: draws the stories, none of which is among the embedded prompts.
        with_output: whether what the calculator answers is to be learnt, too.
    """
    stories = itertools.islice(draw_stories(random.Random(seed), reserved=False), count)
    form = _as_one_answer if with_output else list
    return [{"messages": form(conversation(story)), "tools": [CALCULATOR_SCHEMA]} for story in stories]


def _as_one_answer(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """The question, and all that follows as one text of the assistant's."""
    said = [_said(message) for message in messages[1:]]
    return [messages[0], {"role": "assistant", "content": "".join(said)}]


def _said(message: JsonObject) -> str:
    """A message as the template of the embedded models writes it, up to where the assistant goes on."""
    if message["role"] == "tool":
        return (
            f"<|im_end|>\n<|im_start|>user\n<tool_response>\n{message['content']}\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n"
        )
    calls = message.get("tool_calls")
    if not calls:
        return str(message["content"])
    function = calls[0]["function"]
    return f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'
