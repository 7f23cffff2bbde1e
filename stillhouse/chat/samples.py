"""A conversation as the samples that train every assistant message in the context it would be sampled in.

The context of a message is the rendered prompt before it, and what it says is what the template then writes behind
that prompt. Both are found by rendering starts of the conversation, never by searching text for markers. A sample goes
on through several assistant messages as long as the template leaves what stands behind each one as it was. Where it
renders history another way (Qwen3 takes earlier reasoning out, Mistral moves system prompt and tools to the last
question) a new sample begins, which only reads the messages that the samples before it train.
"""

from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from stillhouse.chat.parts import ALL_PARTS, Part, Piece, pieces_of
from stillhouse.chat.text import Conversation, TemplateError, continuation, prefix_texts
from stillhouse.chat.tokens import Placed, decode_all, encode_all, encode_placed, end_of_turn, special_ids
from stillhouse.types import Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RenderedSample(NamedTuple):
    """Part of a conversation, or all of it, as tokens; both lists have one entry per token."""

    token_ids: list[int]
    loss_mask: list[bool]
    """True where the token belongs to an assistant message or is its end-of-turn token."""


class Span(NamedTuple):
    """A part of a rendered conversation."""

    text: str
    message: int | None
    """Index of the assistant message that says it and is to be learnt; None for what the model only reads."""
    pieces: tuple[Piece, ...] = ()
    """Where reasoning and tool calls stand in it, where that was asked for."""


def render_samples(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    parts: Set[Part] = ALL_PARTS,
) -> list[RenderedSample]:
    """Token ids and loss masks of a whole conversation; every assistant message is supervised in exactly one sample.

    The supervised span of an assistant message starts after the generation prompt and ends with its end-of-turn token;
    what the template writes behind that (ChatML's newline) is not supervised. A conversation without assistant message
    is one sample without targets.

    Args:
        tokenizer: Tokenizer whose template is used.
        messages: The conversation.
        tools: Tools offered.
        parts: What of each message is supervised; see `stillhouse.chat.parts`.

    Raises:
        TemplateError: If the template refuses the messages, does not begin an answered conversation as it begins the
            unanswered one (naming the message), or the tokens of its parts do not add up to its text.
    """
    spans = render_spans(tokenizer, messages, tools, with_pieces=parts != ALL_PARTS)
    samples = tokenise_spans(tokenizer, spans, parts)
    if problem := next((sample for sample in samples if isinstance(sample, TemplateError)), None):
        raise problem
    return [sample for sample in samples if isinstance(sample, RenderedSample)]


def render_spans(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    *,
    with_pieces: bool = False,
) -> list[list[Span]]:
    """The samples of a conversation as texts: what is said to the model and what it says by turns.

    Args:
        tokenizer: Tokenizer whose template is used.
        messages: The conversation.
        tools: Tools offered.
        with_pieces: Find out where reasoning and tool calls stand.

    Raises:
        TemplateError: As `render_samples`.
    """
    (spans,) = render_all_spans(tokenizer, [(messages, tools)], with_pieces=with_pieces)
    if isinstance(spans, TemplateError):
        raise spans
    return spans


def render_all_spans(
    tokenizer: "PreTrainedTokenizerBase",
    conversations: Sequence[tuple[Sequence[Message], Sequence[ToolSchema] | None]],
    *,
    with_pieces: bool = False,
) -> list[list[list[Span]] | TemplateError]:
    """As `render_spans` for many conversations, messages and tools of each, which takes less time than one by one.

    Returns:
        The samples of each conversation, or why it has none.
    """
    asked = [Conversation(messages, tools, _borders(messages)) for messages, tools in conversations]
    spans: list[list[list[Span]] | TemplateError] = []
    for conversation, texts in zip(asked, prefix_texts(tokenizer, asked), strict=True):
        try:
            spans.append(_spans(tokenizer, conversation, texts, with_pieces=with_pieces))
        except TemplateError as error:
            spans.append(error)
    return spans


def _borders(messages: Sequence[Message]) -> list[tuple[int, bool]]:
    """The starts that end before and behind each assistant message, and the whole."""
    said = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    borders = dict.fromkeys(border for index in said for border in ((index, True), (index + 1, False)))
    return list(borders | {(len(messages), False): None})


def _spans(
    tokenizer: "PreTrainedTokenizerBase", conversation: Conversation, texts: Iterator[str], *, with_pieces: bool
) -> list[list[Span]]:
    messages, tools, _ = conversation
    samples: list[list[Span]] = []
    done = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = next(texts), next(texts)
        if not samples or not before.startswith(done):
            samples.append([])
            done = ""
        text = continuation(before, after, index)
        pieces = pieces_of(tokenizer, messages[: index + 1], tools, before, text) if with_pieces else ()
        samples[-1] += [Span(before[len(done) :], None), Span(text, index, pieces)]
        done = after
    # Already read for the last message, unless others follow it.
    full = next(texts, done)
    if not samples:
        return [[Span(full, None)]]
    if full.startswith(done):
        samples[-1].append(Span(full[len(done) :], None))
    return samples


def tokenise_spans(
    tokenizer: "PreTrainedTokenizerBase", samples: Sequence[Sequence[Span]], parts: Set[Part] = ALL_PARTS
) -> list[RenderedSample | TemplateError]:
    """Tokens and masks of many samples, or why one has none.

    Spans are tokenised apart, as they are when a completion is sampled, so that no token crosses the border.

    Args:
        tokenizer: Tokenizer that rendered them.
        samples: As `render_spans` gives them, with pieces where `parts` are not all.
        parts: What is supervised of spans that are to be learnt.
    """
    # The samples of one prompt begin with the same span.
    texts = list(dict.fromkeys(span.text for spans in samples for span in spans))
    places = dict(zip(texts, _placed_all(tokenizer, texts, parts), strict=True))
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


def _placed_all(tokenizer: "PreTrainedTokenizerBase", texts: list[str], parts: Set[Part]) -> list[Placed]:
    if parts != ALL_PARTS:
        return encode_placed(tokenizer, texts)
    return [Placed(ids, []) for ids in encode_all(tokenizer, texts)]


def _masked(
    placed: Sequence[Placed], spans: Sequence[Span], special: Set[int], parts: Set[Part]
) -> RenderedSample | TemplateError:
    ids: list[int] = []
    mask: list[bool] = []
    for tokens, span in zip(placed, spans, strict=True):
        try:
            mask += _span_mask(tokens, span, special, parts)
        except TemplateError as error:
            return error
        ids += tokens.ids
    return RenderedSample(ids, mask)


def _span_mask(tokens: Placed, span: Span, special: Set[int], parts: Set[Part]) -> list[bool]:
    if span.message is None:
        return [False] * len(tokens.ids)
    end = end_of_turn(tokens.ids, special, span.message)
    learnt = [True] * end
    if parts != ALL_PARTS:
        learnt = [_part_at(start, span.pieces) in parts for start in tokens.starts[:end]]
    ends: Part = "tool_calls" if any(piece.part == "tool_calls" for piece in span.pieces) else "text"
    return [*learnt, ends in parts, *[False] * (len(tokens.ids) - end - 1)]


def _part_at(place: int, pieces: Sequence[Piece]) -> Part:
    return next((piece.part for piece in pieces if piece.start <= place < piece.end), "text")


def _tokenised_whole(
    tokenizer: "PreTrainedTokenizerBase", spans: Sequence[Span], special: Set[int], parts: Set[Part]
) -> RenderedSample | TemplateError:
    """The sample tokenised in one piece, for tokenizers that write the start of a text in a way of its own.

    Each span has to begin with a token of its own there, and the tokens before it have to be those of the prompt.
    """
    try:
        (whole,) = encode_placed(tokenizer, ["".join(span.text for span in spans)])
    except TemplateError as error:
        return error
    placed: list[Placed] = []
    text, first = "", 0
    for span in spans:
        if encode_all(tokenizer, [text])[0] != whole.ids[:first]:
            return TemplateError(
                f"a conversation tokenised in {len(spans)} parts has other tokens than in one: a token stands astride "
                f"the end of {text[-20:]!r}, so that masks cannot follow"
            )
        last = len(text) + len(span.text)
        stop = next((place for place in range(first, len(whole.ids)) if whole.starts[place] >= last), len(whole.ids))
        placed.append(Placed(whole.ids[first:stop], [start - len(text) for start in whole.starts[first:stop]]))
        text += span.text
        first = stop
    return _masked(placed, spans, special, parts)
