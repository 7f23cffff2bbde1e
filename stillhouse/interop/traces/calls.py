"""Conversations out of a log of a model's calls, each with all that was sent and the answer.

A call that another sends again with its answer is part of that one: the last call of a conversation holds the whole.
Learnt is what calls of the log answered; other messages of the assistant, examples above all, are context.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from stillhouse.interop.messages import read_messages
from stillhouse.interop.source_record import SourceRecord, Unmapped, schemas_of
from stillhouse.interop.sources import read_rows
from stillhouse.interop.traces.parts import read_message
from stillhouse.interop.traces.steps import Step, histories, record_of
from stillhouse.prompts.files import SourceRow
from stillhouse.prompts.row import RowProblem, decoded
from stillhouse.types import JsonObject, Message

_UNKNOWN: Final = "a message of the assistant that no call of the log answered: context, not learnt"
_OTHER_CHOICES: Final = "further choices of a call: the first is read"


class Call(NamedTuple):
    """A call at a place of a log; `messages` ends with the answer, `about` are fields of SourceConversation."""

    place: str
    group: str
    """Calls of one conversation have the same."""
    messages: list[Message]
    model: str | None
    about: JsonObject
    unmapped: list[Unmapped]


def gather_calls(
    files: Iterable[Path],
    spans_of: Callable[[JsonObject], Iterable[JsonObject]],
    call_of: Callable[[JsonObject, str], Call | None],
) -> Iterator[SourceRow]:
    """Yield the conversations of a log, and before them the rows and spans that cannot be read.

    `spans_of` returns the spans of a row, `call_of` the call of a span at a place, None if it is another span.
    """
    calls: list[Call] = []
    problems: list[SourceRow] = []

    def read(place: str, read_it: Callable[..., Any], *given: Any) -> list[Any]:
        try:
            return list(filter(None, read_it(*given)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            kind = "" if isinstance(error, RowProblem) else f"expected a call of a model: {type(error).__name__}: "
            problems.append(SourceRow(place, {}, f"{kind}{error}"))
            return []

    for row in (row for path in files for row in read_rows(path)):
        problems += [row] if row.problem is not None else []
        for span in read(row.place, spans_of, row.value) if row.problem is None else ():
            calls += read(row.place, lambda *given: [call_of(*given)], span, row.place)
    yield from problems
    chains = [histories(call.messages, call.group) for call in calls]
    sent = {history for chain in chains for history in chain[:-1]}
    answered = {chain[-1]: call for chain, call in zip(chains, calls, strict=True)}
    known = set[str]()
    for chain, call in zip(chains, calls, strict=True):
        if chain[-1] not in sent:
            steps = [_step(said, answered.get(at)) for said, at in zip(call.messages, chain, strict=True)]
            yield SourceRow(call.place, {"steps": steps, "known": known, "unmapped": call.unmapped, **call.about})


def _step(message: Message, call: Call | None) -> Step:
    """Return a message that was sent; if a call answered it, with the reasoning, which is rarely sent again."""
    if message["role"] != "assistant" or call is None:
        return Step({**message}, None, _UNKNOWN if message["role"] == "assistant" else None)
    return Step({**call.messages[-1], **message}, call.place, None, call.model)


def read_call(row: JsonObject) -> SourceRecord:
    """Read a conversation of a log; see `ReadRow`."""
    return record_of(**row)


def call_in(place: str, group: str, request: Any, response: Any) -> Call:
    """Return the call of a request and its response, either of which may be JSON text.

    A request is the body of OpenAI's or Anthropic's, or messages, or a text; a response is a body, or choices, a
    message or a text. Raises RowProblem if one says nothing.
    """
    request, response, unmapped = json_in(request), json_in(response), list[Unmapped]()
    asked = request if isinstance(request, dict) else {"messages": request}
    told = response if isinstance(response, dict) else {}
    messages = json_in(asked.get("messages", [asked] if "role" in asked else None))
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    choices = json_in(told.get("choices", response))
    choices = choices if isinstance(choices, list) else [choices] if choices else []
    if not messages or not choices:
        raise RowProblem(f"a call without {'an answer' if messages else 'messages'}")
    unmapped += [Unmapped(_OTHER_CHOICES, "choices", place)] if len(choices) > 1 else []
    answer = choices[0] if isinstance(choices[0], dict) else {"content": choices[0]}
    system = json_in(asked.get("system"))
    said = [{"role": "system", "content": system}] if system else []
    said += [*messages, {**answer.get("message", answer), "role": "assistant"}]
    read = read_messages([one for message in said for one in read_message(message, place, unmapped)])
    is_cut = (answer.get("finish_reason") or told.get("stop_reason")) in ("length", "max_tokens")
    tools = [one.get("function", one) for one in json_in(asked.get("tools")) or ()]
    schemas = schemas_of({"parameters": one.get("input_schema"), **one} for one in tools) or None
    about = {"schemas": schemas, "is_truncated": is_cut}
    return Call(place, group, read, told.get("model") or asked.get("model"), about, unmapped)


def json_in(value: Any) -> Any:
    """Return the value of JSON text of an object, a list or a text; another text as it is."""
    return decoded(value, "a value") if isinstance(value, str) and value.startswith(("[", "{", '"')) else value
