"""An assistant's message in pieces, as `parse_completion` reads it whole.

Two things are not known before a completion has ended, and stay where they were sent: text before an end of reasoning
that neither the completion nor its prompt began is content; what follows a prompt that began it is reasoning.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from stillhouse.chat.parse import CALL, END_CALL, END_THINK, THINK, parse_call
from stillhouse.serving.text import beginning_of
from stillhouse.types import JsonObject, ToolSchema


class MessageDeltas:
    """Turns text into deltas of reasoning, content and calls; a call is one delta, once its block has ended.

    Args:
        first_call_index: number in the id of the first call.
        tools: those offered; without any, blocks of calls are content.
        in_thought: whether the prompt has opened the reasoning.
    """

    def __init__(self, first_call_index: int, tools: Sequence[ToolSchema], *, in_thought: bool) -> None:
        self._first_call_index = first_call_index
        self._tools = tools
        self._part: Literal["start", "thought", "gap", "answer", "call"] = "thought" if in_thought else "start"
        self._held = ""
        self._blank = ""
        """White space that is content only if more follows, or if there is nothing else."""
        self._has_reasoning = False
        self._has_content = False
        self.num_calls = 0
        """Calls sent so far."""

    def feed(self, text: str, *, is_end: bool = False) -> Iterator[JsonObject]:
        """Deltas that `text` completes; with `is_end` also what was held back."""
        self._held += text
        part = None
        while part != self._part:
            part = self._part
            yield from getattr(self, f"_{part}")(is_end)
        if is_end and self._blank and not (self._has_reasoning or self.num_calls):
            yield {"content": self._blank}

    def _start(self, is_end: bool) -> Iterator[JsonObject]:
        if self._held.startswith(THINK):
            self._held = self._held.removeprefix(THINK)
            self._part = "thought"
        elif is_end or not THINK.startswith(self._held):
            self._part = "answer"
        yield from ()

    def _thought(self, is_end: bool) -> Iterator[JsonObject]:
        thought, tag, rest = self._held.partition(END_THINK)
        if not tag and not is_end:
            thought = thought.removesuffix(beginning_of([END_THINK], thought))
        if not self._has_reasoning:
            thought = thought.lstrip("\n")
        shown = thought.rstrip("\n")
        if tag:
            self._held, self._part = rest, "gap"
        else:
            place = self._held.find(shown) + len(shown) if shown else 0
            self._held = self._held[place:]
        if shown:
            self._has_reasoning = True
            yield {"reasoning_content": shown}

    def _gap(self, is_end: bool) -> Iterator[JsonObject]:
        self._held = self._held.lstrip("\n")
        if self._held or is_end:
            self._part = "answer"
        yield from ()

    def _answer(self, is_end: bool) -> Iterator[JsonObject]:
        content, tag, rest = self._held.partition(CALL) if self._tools else (self._held, "", "")
        if tag:
            content = content.removesuffix("\n")
            self._held, self._part = rest, "call"
        elif self._tools and not is_end:
            self._held = beginning_of([CALL, "\n" + CALL], content)
            content = content.removesuffix(self._held)
        else:
            self._held = ""
        content = self._blank + content
        self._blank = ""
        if content.strip() or (content and self._has_content):
            self._has_content = True
            yield {"content": content}
        else:
            self._blank = content

    def _call(self, is_end: bool) -> Iterator[JsonObject]:
        block, tag, rest = self._held.partition(END_CALL)
        if not tag and not is_end:
            return
        call = parse_call(CALL + block + tag, f"call_{self._first_call_index + self.num_calls}", self._tools)
        yield {"tool_calls": [{"index": self.num_calls, **call}]}
        self.num_calls += 1
        self._held, self._part = rest, "answer"
