"""Conversations out of the steps of a history.

What the model wrote is learnt, once: a turn that was interrupted, or whose calls have no result, is context of what
follows. Each run of learnt turns is a trajectory, since one is learnt wholly; its prompt is all that stood before, its
end the last answer.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from stillhouse.chat.content import text_of
from stillhouse.interop.messages import read_messages
from stillhouse.interop.source_record import SourceConversation, SourceRecord, Unmapped
from stillhouse.interop.sources import read_rows
from stillhouse.prompts.files import SourceRow
from stillhouse.store import digest
from stillhouse.types import JsonObject

_INTERRUPTED: Final = "a turn that was interrupted: context, not learnt"
_NO_RESULT: Final = "a call without a result: dropped, and the rest of its turn is context, not learnt"
_NO_CALL: Final = "a result of a call that is not in the log: left out"
_NO_WORDS: Final = "a turn without text and calls: left out"
_COPY: Final = "a turn that is learnt from another copy of it: context here"
_NO_ANSWER: Final = "a turn that no answer follows before the log ends or breaks: left out"


class Step(NamedTuple):
    message: JsonObject
    """In OpenAI's form. Results of tools may stand anywhere behind their call."""
    place: str | None
    unlearnt: str | None = None
    """Why a message of the assistant is context alone."""
    model: str | None = None

    @property
    def role(self) -> str:
        return str(self.message["role"])


def gather_sessions(
    files: Iterable[Path], histories_of: Callable[[list[JsonObject]], Iterable[list[JsonObject]]]
) -> Iterator[SourceRow]:
    """Yield the histories in the lines of each file, and before them the lines that cannot be read.

    A line gets its `place`. All histories share `known`, which is for `record_of`.
    """
    known = set[str]()
    for path in files:
        rows = list(read_rows(path))
        yield from (row for row in rows if row.problem is not None)
        for lines in filter(None, histories_of([{**row.value, "place": row.place} for row in rows])):
            yield SourceRow(lines[0]["place"], {"lines": lines, "known": known})


def record_of(steps: Sequence[Step], known: set[str], unmapped: list[Unmapped], **about: Any) -> SourceRecord:
    """Return the conversations of one history; `about` are fields of SourceConversation.

    Their metadata has `source_spans`: for each message of the assistant its place in the log, null where the log does
    not say who wrote it. `known` are digests of turns that are learnt elsewhere, and gets those of this history.
    """
    messages: Any = read_messages([step.message for step in steps], reads_text=False) if steps else []
    steps = [step._replace(message=message) for step, message in zip(steps, messages, strict=True)]
    steps = list(_once(_joined(_answered(steps, unmapped)), known))
    turns = [step for step in steps if step.role == "assistant"]
    unmapped += [Unmapped(step.unlearnt, "messages", step.place) for step in turns if step.unlearnt]
    record, metadata = SourceRecord(unmapped=unmapped), about.pop("metadata", {})
    answers = (index for index, step in enumerate(steps) if step.role == "assistant")
    for is_context, grouped in groupby(answers, lambda index: steps[index].unlearnt is not None):
        run = list(grouped)
        last = max((index for index in run if not steps[index].message.get("tool_calls")), default=run[-1])
        if not is_context:
            unmapped += [Unmapped(_NO_ANSWER, "messages", steps[index].place) for index in run if index > last]
            history = steps[: last + 1 + len(steps[last].message.get("tool_calls", ()))]
            spans = {"source_spans": [step.place for step in history if step.role == "assistant"]}
            said: Any = [step.message for step in history]
            told = {"metadata": metadata | spans, "model": steps[last].model, **about}
            record.conversations.append(SourceConversation(said, run[0], **told))
    return record


def interrupt(steps: list[Step], aside: tuple[str, ...], *, is_of_calls: bool) -> None:
    """Mark the last turn as interrupted: its text, or its calls if they have no result or `is_of_calls`.

    It is not the one that was interrupted where the user said something since that does not begin as in `aside`.
    """
    index = max((index for index, step in enumerate(steps) if step.role == "assistant"), default=len(steps))
    later = [step.message for step in steps[index + 1 :]]
    is_next = any(one["role"] == "user" and not str(one["content"]).startswith(aside) for one in later)
    calls = {call["id"] for step in steps[index : index + 1] for call in step.message.get("tool_calls", ())}
    if not is_next and (is_of_calls or not calls or calls - {one.get("tool_call_id") for one in later}):
        steps[index:] = [step._replace(unlearnt=_INTERRUPTED) for step in steps[index:]]


def _answered(steps: Sequence[Step], unmapped: list[Unmapped]) -> Iterator[Step]:
    """Yield the steps with each result behind its call, without calls and results that have no counterpart."""
    results = {index: step for index, step in enumerate(steps) if step.role == "tool"}
    for index, step in enumerate(steps):
        calls, found = step.message.get("tool_calls") or [], []
        for call in calls:
            ids = (at for at, one in results.items() if at > index and one.message.get("tool_call_id") == call["id"])
            if (at := next(ids, None)) is not None:
                found.append((call, results.pop(at)))
        if len(found) < len(calls):
            kept = {**step.message, "content": step.message.get("content"), "tool_calls": [call for call, _ in found]}
            kept = kept if found else {key: value for key, value in kept.items() if key != "tool_calls"}
            step = step._replace(message=kept, unlearnt=step.unlearnt or _NO_RESULT)
        if step.role == "assistant" and not found and not text_of(step.message).strip():  # type: ignore[arg-type]
            unmapped.append(Unmapped(step.unlearnt or _NO_WORDS, "messages", step.place))
        elif step.role != "tool":
            yield step
            yield from (result for _, result in found)
    unmapped += [Unmapped(_NO_CALL, "messages", step.place) for step in results.values()]


def _joined(steps: Iterable[Step]) -> list[Step]:
    """Return the steps as chat templates take them: one system message, and one of the user between turns."""
    joined: list[Step] = []
    for step in steps:
        role, content, last = step.role, step.message.get("content"), joined[-1].role if joined else "system"
        role = "user" if role == "system" != last else role
        if joined and role == last and role in ("system", "user"):
            content = f"{joined.pop().message['content']}\n\n{content}"
        joined.append(step._replace(message={**step.message, "role": role, "content": content}))
    return joined


def _once(steps: list[Step], known: set[str]) -> Iterator[Step]:
    """Yield the steps, the turns of `known` as context; a turn is known by all that was said up to it."""
    for step, history in zip(steps, histories(step.message for step in steps), strict=True):
        is_turn = step.role == "assistant" and step.unlearnt is None
        yield step._replace(unlearnt=_COPY) if is_turn and history in known else step
        known |= {history} if is_turn else set()


def histories(messages: Iterable[Any], before: str = "") -> list[str]:
    """Return the digest of a conversation up to each message: of words and calls, without spaces and reasoning."""
    digests = []
    for message in messages:
        calls = [f"{call['function']['name']}{call['function']['arguments']}" for call in message.get("tool_calls", ())]
        said = [re.sub(r"\s", "", str(text)) for text in (message.get("content") or "", *calls)]
        digests.append(before := digest([before, message["role"], said]))
    return digests
