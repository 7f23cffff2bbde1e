"""The check that the text a conversation is trained with says what its messages say.

Text of a template in the Qwen3 / Hermes form is parsed with `parse_completion`, and calls and content are compared. The
call syntax of other templates is not parsed: names, arguments and content must occur in the text, which finds what a
template drops or escapes, not what it mixes up.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from stillhouse.chat.content import calls_of, reasoning_of, text_of
from stillhouse.chat.message_form import CALL_PROBE, CALL_PROBE_TOOLS
from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.chat.parse import MALFORMED_CALL, parse_completion
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.samples import Span, render_spans
from stillhouse.chat.template import render_text
from stillhouse.chat.thinking import CLOSING
from stillhouse.chat.tokenizer import special_tokens
from stillhouse.chat.turn import said_in
from stillhouse.types import Message, Tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_SHOWN: Final = 80
_PROBE: Final[list[Message]] = [CALL_PROBE[0], {**CALL_PROBE[1], "content": "text"}]


class RoundTrip:
    """Compares rendered conversations with their messages."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._end_tokens: list[str] = []
        self._turn_tokens = turn_tokens(tokenizer)
        self._is_parsed = False
        try:
            self._end_tokens = [str(tokenizer.convert_ids_to_tokens(end)) for end in sorted(stop_token_ids(tokenizer))]
            samples = render_spans(tokenizer, _PROBE, CALL_PROBE_TOOLS)
        except TemplateError:
            return  # It refuses a plain call; each conversation shows what else it refuses.
        # Values between tags may have lost their types, which is no fault of the conversation.
        self._is_parsed = all(
            calls_of(_PROBE[1])[0].arguments in text and self._difference(_PROBE[index], text, True) is None
            for index, text in _completions(samples)
        )

    def problem(self, messages: Sequence[Message], tools: Tools, samples: Sequence[Sequence[Span]]) -> str | None:
        """Return the first difference between messages and their text (of `render_spans`), naming the message.

        White space at the ends of content is not compared, since templates trim it, nor is reasoning, which they may
        leave out.
        """
        for index, text in _completions(samples):
            message = messages[index]
            with_calls = bool(tools or message.get("tool_calls"))
            problem = self._difference(message, text, with_calls) if self._is_parsed else _missing(message, text)
            problem = problem or call_problem(message)
            said, before_end = said_in(message), text.rstrip()
            held = next((one for one in self._turn_tokens if one in said and one in before_end.removesuffix(one)), None)
            if problem is None and held is not None:
                problem = f"it holds {held}, which begins or ends a turn"
            if problem is not None:
                return f"message {index} is rendered as something else: {problem}"
        return None

    def _difference(self, message: Message, text: str, with_calls: bool) -> str | None:
        end = max((text.rfind(end) for end in self._end_tokens), default=-1)
        parsed = parse_completion(text[:end] if end >= 0 else text, with_calls=with_calls)
        calls, parsed_calls = _calls(message), _calls(parsed)
        if len(calls) != len(parsed_calls):
            return f"{len(calls)} tool calls were made, {len(parsed_calls)} are read"
        for call, parsed_call in zip(calls, parsed_calls, strict=True):
            if call != parsed_call:
                return f"the call {_shown(call)} reads as {_shown(parsed_call)}"
        content, parsed_content = _content(message), text_of(parsed).strip()
        if content != parsed_content:
            return f"the content {_cut(content)!r} reads as {_cut(parsed_content)!r}"
        return None


def turn_tokens(tokenizer: "PreTrainedTokenizerBase") -> tuple[str, ...]:
    """Return the special tokens with which the template frames turns, and those that the tokenizer has a name for.

    What a model says with such a text in it is tokenised as if a turn began or ended there. Other special tokens may
    be markup of reasoning or calls that rows write into their text.
    """
    framed = " ".join(token for token in tokenizer.special_tokens_map.values() if isinstance(token, str))
    exchange: list[Message] = [_PROBE[0], {"role": "assistant", "content": "text"}, _PROBE[0]]
    with suppress(TemplateError):
        framed += render_text(tokenizer, exchange, None, add_generation_prompt=True)
    thinking = " ".join([*CLOSING, *CLOSING.values()])
    return tuple(token for token in special_tokens(tokenizer) if token in framed and token not in thinking)


def call_problem(message: Message) -> str | None:
    """Return which call of a message has arguments that are no JSON object; a call without any has empty ones."""
    calls = (call for call in calls_of(message) if call.name != MALFORMED_CALL and call.arguments.strip())
    bad = next((call for call in calls if not _canonical(call.arguments).startswith("{")), None)
    return bad and f"the call {_shown((bad.name, bad.arguments))} has no JSON object as its arguments"


def reads_calls(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Return whether `parse_completion` reads calls in the form in which the template writes them."""
    try:
        ((_, text),) = _completions(render_spans(tokenizer, _PROBE, CALL_PROBE_TOOLS))
    except TemplateError:
        return False
    return _calls(parse_completion(text, tools=CALL_PROBE_TOOLS)) == _calls(_PROBE[-1])


def _completions(samples: Sequence[Sequence[Span]]) -> Iterator[tuple[int, str]]:
    return ((span.message, span.text) for spans in samples for span in spans if span.message is not None)


def _missing(message: Message, text: str) -> str | None:
    """Return the first part of the message that does not occur in the text, in words."""
    content = _content(message)
    if content not in text:
        return f"the content {_cut(content)!r} is not in it"
    if content and any(text.rfind(name) < text.find(content) for name, _ in _calls(message) if name in text):
        return f"the content {_cut(content)!r} stands behind its calls"
    reasoning = reasoning_of(message).strip()
    if tag := next((tag for tag in CLOSING.values() if tag in reasoning and reasoning in text), None):
        return f"its reasoning holds {tag}, which ends reasoning"
    for name, arguments in _calls(message):
        parts = [arguments] if name == MALFORMED_CALL else [name, *_parts(json.loads(arguments))]
        for part in parts:
            if not any(spelling in text for spelling in _spellings(part)):
                return f"{_cut(str(part))!r} of the call {_shown((name, arguments))} is not in it"
    return None


def _calls(message: Message) -> list[tuple[str, str]]:
    """Return names and arguments of the calls, the arguments as canonical JSON."""
    return [(call.name, _canonical(call.arguments)) for call in calls_of(message)]


def _canonical(arguments: str) -> str:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return json.dumps(value if isinstance(value, dict) else arguments, sort_keys=True, ensure_ascii=False)


def _content(message: Message) -> str:
    """Return the answer's text, without reasoning that is written into it."""
    return text_of(parse_completion(text_of(message), with_calls=False)).strip()


def _parts(value: Any) -> Iterator[Any]:
    """Yield keys and scalars at any depth."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _parts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _parts(item)
    else:
        yield value


def _spellings(value: Any) -> list[str]:
    """Return how templates write a scalar: bare, as JSON, and as JSON in ASCII."""
    bare = str(value)
    if not isinstance(value, str):
        return [bare, json.dumps(value)]
    return [bare.strip(), json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1]]


def _shown(call: tuple[str, str]) -> str:
    return f"{call[0]}({_cut(call[1])})"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
