"""A conversation as the samples that train every assistant message in the context it would be sampled in.

Context and completion of a message are found by rendering prefixes of the conversation, never by searching text for
markers. A sample spans several assistant messages as long as the template leaves earlier text as it was. Where it
renders history differently (Qwen3 removes earlier reasoning, Mistral moves system prompt and tools to the last
question) a new sample begins, in which the messages that earlier samples train are context only.
"""

from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from stillhouse.chat.parts import ALL_PARTS, Part, Piece, pieces_of
from stillhouse.chat.rendering import Prefixes, TemplateError
from stillhouse.chat.template import prefix_texts
from stillhouse.chat.tokenizer import PlacedTokens, decode_all, encode_all, encode_placed, end_of_turn, special_ids
from stillhouse.chat.turn import turn_text
from stillhouse.types import Message, Tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class MessageStart(NamedTuple):
    """Where a trained assistant message begins: what the model sampled does, behind the generation prompt."""

    message: int
    """Index of the message in the conversation."""
    token: int
    """Index of its first token in the sample."""


class RenderedSample(NamedTuple):
    """Part of a conversation, or all of it, as tokens; both lists have one entry per token."""

    token_ids: list[int]
    loss_mask: list[bool]
    """True where the token belongs to an assistant message or is its end-of-turn token."""
    starts: tuple[MessageStart, ...]
    """Of the trained messages, in order."""


class Span(NamedTuple):
    """A part of a rendered conversation."""

    text: str
    message: int | None
    """Index of the assistant message that is trained on here; None for context."""
    pieces: tuple[Piece, ...] = ()
    """Reasoning and tool calls in it; empty unless asked for."""


def render_samples(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Tools, parts: Set[Part] = ALL_PARTS
) -> list[RenderedSample]:
    """Return ids and loss masks of a whole conversation; every assistant message is supervised in exactly one sample.

    The supervised span of an assistant message starts after the generation prompt and ends with its end-of-turn token;
    what the template writes after that (ChatML's newline) is not supervised. Only `parts` of it are; see
    `stillhouse.chat.parts`. A conversation without assistant message is one sample without targets. Raises
    TemplateError if the template refuses the messages, is not prefix preserving at a message (which is named), or the
    tokens of the spans do not add up to the text.
    """
    spans = render_spans(tokenizer, messages, tools, with_pieces=parts != ALL_PARTS)
    samples = tokenise_spans(tokenizer, spans, parts)
    if problem := next((sample for sample in samples if isinstance(sample, TemplateError)), None):
        raise problem
    return [sample for sample in samples if isinstance(sample, RenderedSample)]


def render_spans(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Tools, *, with_pieces: bool = False
) -> list[list[Span]]:
    """Return a conversation's samples as texts, context and assistant messages by turns; raises as `render_samples`."""
    (spans,) = render_all_spans(tokenizer, [(messages, tools)], with_pieces=with_pieces)
    if isinstance(spans, TemplateError):
        raise spans
    return spans


def render_all_spans(
    tokenizer: "PreTrainedTokenizerBase",
    conversations: Sequence[tuple[Sequence[Message], Tools]],
    *,
    with_pieces: bool = False,
) -> list[list[list[Span]] | TemplateError]:
    """Return `render_spans` of many conversations (messages and tools), or the error of each, at once."""
    requests = [Prefixes(messages, tools, _prefixes(messages)) for messages, tools in conversations]
    spans: list[list[list[Span]] | TemplateError] = []
    for (messages, tools), texts in zip(conversations, prefix_texts(tokenizer, requests), strict=True):
        try:
            spans.append(_spans(tokenizer, messages, tools, texts, with_pieces=with_pieces))
        except TemplateError as error:
            spans.append(error)
    return spans


def _prefixes(messages: Sequence[Message]) -> list[tuple[int, bool]]:
    """Return the prefixes that end before and after each assistant message, and the whole conversation."""
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    prefixes = dict.fromkeys(prefix for index in turns for prefix in ((index, True), (index + 1, False)))
    return list(prefixes | {(len(messages), False): None})


def _spans(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Tools,
    texts: Iterator[str],
    *,
    with_pieces: bool,
) -> list[list[Span]]:
    samples: list[list[Span]] = []
    done = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = next(texts), next(texts)
        if not samples or not before.startswith(done):
            samples.append([])
            done = ""
        text = turn_text(tokenizer, messages[: index + 1], tools, before, after)
        pieces = pieces_of(tokenizer, messages[: index + 1], tools, before, text) if with_pieces else ()
        samples[-1] += [Span(before[len(done) :], None), Span(text, index, pieces)]
        done = before + text
    # The iterator has one more text only if messages follow the last assistant's.
    full = next(texts, done)
    if not samples:
        return [[Span(full, None)]]
    if full.startswith(done):
        samples[-1].append(Span(full[len(done) :], None))
    return samples


def tokenise_spans(
    tokenizer: "PreTrainedTokenizerBase", samples: Sequence[Sequence[Span]], parts: Set[Part] = ALL_PARTS
) -> list[RenderedSample | TemplateError]:
    """Return tokens and masks of many samples, or the error of each; `samples` need pieces for single `parts`.

    Spans are tokenised separately, as a completion is when it is sampled, so that no token crosses a border.
    """
    # The samples of one prompt begin with the same span.
    texts = list(dict.fromkeys(span.text for spans in samples for span in spans))
    if parts == ALL_PARTS:
        tokens = [PlacedTokens(ids, []) for ids in encode_all(tokenizer, texts)]
    else:
        tokens = encode_placed(tokenizer, texts)
    places = dict(zip(texts, tokens, strict=True))
    special = special_ids(tokenizer)
    masked = [_masked([places[span.text] for span in spans], spans, special, parts) for spans in samples]
    sound = [sample for sample in masked if isinstance(sample, RenderedSample)]
    decoded = iter(decode_all(tokenizer, [sample.token_ids for sample in sound]))
    return [
        sample
        if isinstance(sample, TemplateError) or next(decoded) == "".join(span.text for span in spans)
        else _tokenised_whole(tokenizer, spans, special, parts)
        for sample, spans in zip(masked, samples, strict=True)
    ]


def _masked(
    placed: Sequence[PlacedTokens], spans: Sequence[Span], special: Set[int], parts: Set[Part]
) -> RenderedSample | TemplateError:
    ids: list[int] = []
    mask: list[bool] = []
    starts: list[MessageStart] = []
    for tokens, span in zip(placed, spans, strict=True):
        try:
            mask += _span_mask(tokens, span, special, parts)
        except TemplateError as error:
            return error
        if span.message is not None:
            starts.append(MessageStart(span.message, len(ids)))
        ids += tokens.ids
    return RenderedSample(ids, mask, tuple(starts))


def _span_mask(tokens: PlacedTokens, span: Span, special: Set[int], parts: Set[Part]) -> list[bool]:
    if span.message is None:
        return [False] * len(tokens.ids)
    end = end_of_turn(tokens.ids, special, span.message)
    supervised = [True] * end
    if parts != ALL_PARTS:
        part_of_tokens = (
            next((piece.part for piece in span.pieces if piece.start <= start < piece.end), "text")
            for start in tokens.starts[:end]
        )
        supervised = [part in parts for part in part_of_tokens]
    ends: Part = "tool_calls" if any(piece.part == "tool_calls" for piece in span.pieces) else "text"
    return [*supervised, ends in parts, *[False] * (len(tokens.ids) - end - 1)]


def _tokenised_whole(
    tokenizer: "PreTrainedTokenizerBase", spans: Sequence[Span], special: Set[int], parts: Set[Part]
) -> RenderedSample | TemplateError:
    """Return the sample tokenised in one piece, for tokenizers that treat the start of a text specially.

    Each span must start at a token border, and the tokens before it must equal those of the prompt alone.
    """
    try:
        (full,) = encode_placed(tokenizer, ["".join(span.text for span in spans)])
    except TemplateError as error:
        return error
    placed: list[PlacedTokens] = []
    text, first = "", 0
    for span in spans:
        if encode_all(tokenizer, [text])[0] != full.ids[:first]:
            return TemplateError(
                f"a conversation tokenised in {len(spans)} parts has other tokens than in one: a token stands astride "
                f"the end of {text[-20:]!r}, so that masks cannot follow"
            )
        last = len(text) + len(span.text)
        stop = next((place for place in range(first, len(full.ids)) if full.starts[place] >= last), len(full.ids))
        placed.append(PlacedTokens(full.ids[first:stop], [start - len(text) for start in full.starts[first:stop]]))
        text += span.text
        first = stop
    return _masked(placed, spans, special, parts)
