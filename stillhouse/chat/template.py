"""Messages to tokens, with the spans that were (or would be) sampled.

Everything is found by rendering prefixes of the conversation, never by searching text for markers, so it holds for any
template that is prefix preserving: one that renders a conversation's start the same whatever follows it.
"""

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from stillhouse.chat.text import TemplateError, prefix_texts, render_text
from stillhouse.types import Message, ToolSchema

__all__ = [
    "RenderedSample",
    "Span",
    "TemplateError",
    "next_turn_ids",
    "render",
    "render_sample",
    "render_spans",
    "stop_token_ids",
    "tokenise_spans",
]

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RenderedSample(NamedTuple):
    """A conversation as tokens; both lists have one entry per token."""

    token_ids: list[int]
    loss_mask: list[bool]
    """True where the token belongs to an assistant message or is its end-of-turn token."""


class Span(NamedTuple):
    """A part of a rendered conversation."""

    text: str
    message: int | None
    """Index of the assistant message that says it; None for what the model only reads."""


def render(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
    *,
    add_generation_prompt: bool,
) -> list[int]:
    """Token ids of a conversation, as a model of this tokenizer is prompted with it.

    Raises:
        TemplateError: If the template refuses the messages.
    """
    return _encode(tokenizer, render_text(tokenizer, messages, tools, add_generation_prompt))


def render_sample(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Sequence[ToolSchema] | None
) -> RenderedSample:
    """Token ids and loss mask of a whole conversation.

    The supervised span of an assistant message starts after the generation prompt and ends with its end-of-turn token;
    what the template writes behind that (ChatML's newline) is not supervised.

    Raises:
        TemplateError: If the template refuses the messages, is not prefix preserving (naming the message), or the
            conversation's parts do not add up to its text.
    """
    (sample,) = tokenise_spans(tokenizer, [render_spans(tokenizer, messages, tools)])
    if isinstance(sample, TemplateError):
        raise sample
    return sample


def render_spans(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: Sequence[ToolSchema] | None
) -> list[Span]:
    """The text of a conversation in parts, what is said to the model and what it says by turns.

    Raises:
        TemplateError: If the template refuses the messages, or is not prefix preserving (naming the message).
    """
    whole = len(messages)
    said = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    prefixes = dict.fromkeys(prefix for index in said for prefix in ((index, True), (index + 1, False)))
    texts = prefix_texts(tokenizer, messages, tools, list(prefixes | {(whole, False): None}))
    spans: list[Span] = []
    done = ""
    for index in said:
        before, after = next(texts), next(texts)
        spans += [Span(_continuation(done, before, index), None), Span(_continuation(before, after, index), index)]
        done = after
    return [*spans, Span("".join(_continuation(done, rest, whole - 1) for rest in texts), None)]


def tokenise_spans(
    tokenizer: "PreTrainedTokenizerBase", conversations: Sequence[Sequence[Span]]
) -> list[RenderedSample | TemplateError]:
    """Tokens and masks of many conversations, or why one has none.

    Spans are tokenised apart, as they are when a completion is sampled, so that no token crosses the border.
    """
    # The samples of one prompt begin with the same span.
    texts = list(dict.fromkeys(span.text for spans in conversations for span in spans))
    ids = dict(zip(texts, _encode_all(tokenizer, texts), strict=True))
    special = _special_ids(tokenizer)
    samples = [_masked(spans, ids, special) for spans in conversations]
    sound = [sample for sample in samples if isinstance(sample, RenderedSample)]
    decoded = iter(_decode_all(tokenizer, [sample.token_ids for sample in sound]))
    return [
        _checked(tokenizer, sample, spans, next(decoded)) if isinstance(sample, RenderedSample) else sample
        for sample, spans in zip(samples, conversations, strict=True)
    ]


def _masked(
    spans: Sequence[Span], ids_of: Mapping[str, list[int]], special: Set[int]
) -> RenderedSample | TemplateError:
    ids: list[int] = []
    mask: list[bool] = []
    for text, message in spans:
        span_ids = ids_of[text]
        try:
            end = 0 if message is None else _end_of_turn(span_ids, special, message) + 1
        except TemplateError as error:
            return error
        ids += span_ids
        mask += [True] * end + [False] * (len(span_ids) - end)
    return RenderedSample(ids, mask)


def _checked(
    tokenizer: "PreTrainedTokenizerBase", sample: RenderedSample, spans: Sequence[Span], decoded: str
) -> RenderedSample | TemplateError:
    text = "".join(span.text for span in spans)
    if decoded == text or _encode(tokenizer, text) == sample.token_ids:
        return sample
    return TemplateError(
        f"a conversation tokenised in {len(spans)} parts decodes to another text; the tokenizer adds characters at the "
        f"start of a text, which masks cannot follow"
    )


def next_turn_ids(
    tokenizer: "PreTrainedTokenizerBase",
    sampled_ids: Sequence[int],
    messages_so_far: Sequence[Message],
    tool_messages: Sequence[Message],
    tools: Sequence[ToolSchema] | None,
) -> list[int]:
    """Ids to append after a sampled completion so that the next turn can be sampled (token-in, token-out).

    The sampled ids themselves are never tokenised again: only what the template writes after the assistant's turn is.

    Args:
        tokenizer: Tokenizer whose template is used.
        sampled_ids: The completion, which ends with an end-of-turn token or was cut; a cut one gets its end here.
        messages_so_far: The conversation; its last message is the assistant's, parsed from `sampled_ids`.
        tool_messages: The messages that answer it (tool results, or a user's).
        tools: Tools offered.

    Raises:
        TemplateError: If the template is not prefix preserving.
    """
    last = len(messages_so_far) - 1
    after = render_text(tokenizer, messages_so_far, tools, add_generation_prompt=False)
    following = render_text(tokenizer, [*messages_so_far, *tool_messages], tools, add_generation_prompt=True)
    after_ids = _encode(tokenizer, after)
    end_id = after_ids[_end_of_turn(after_ids, _special_ids(tokenizer), last)]
    end_text = tokenizer.convert_ids_to_tokens(end_id)
    trailer = after[after.rindex(end_text) + len(end_text) :]
    suffix = _encode(tokenizer, trailer + _continuation(after, following, last))
    is_ended = bool(sampled_ids) and sampled_ids[-1] in {end_id, tokenizer.eos_token_id}
    return suffix if is_ended else [end_id, *suffix]


def stop_token_ids(tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Tokens that end an assistant's turn: the tokenizer's end token and the one its template closes a turn with.

    They differ for some base models, whose end token is the end of a document.
    """
    ids = render(
        tokenizer, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], None,
        add_generation_prompt=False,
    )  # fmt: skip
    return frozenset({tokenizer.eos_token_id, ids[_end_of_turn(ids, _special_ids(tokenizer), 1)]})


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return _encode_all(tokenizer, [text])[0]


def _encode_all(tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> list[list[int]]:
    if not tokenizer.is_fast:
        return [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]
    # Without the wrapper, which costs more than the tokens themselves: masks, offsets and a copy of each.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _decode_all(tokenizer: "PreTrainedTokenizerBase", sequences: list[list[int]]) -> list[str]:
    if not tokenizer.is_fast:
        return [tokenizer.decode(ids) for ids in sequences]
    return tokenizer.backend_tokenizer.decode_batch(sequences, skip_special_tokens=False)


def _continuation(start: str, whole: str, index: int) -> str:
    if not whole.startswith(start):
        raise TemplateError(
            f"the chat template is not prefix preserving at message {index}: the conversation up to it is rendered "
            f"differently once more follows; use a template that renders every turn the same wherever it stands"
        )
    return whole[len(start) :]


def _special_ids(tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    return frozenset(token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special)


def _end_of_turn(ids: Sequence[int], special: Set[int], index: int) -> int:
    """Place of the last special token in `ids`."""
    for place in range(len(ids) - 1, -1, -1):
        if ids[place] in special:
            return place
    raise TemplateError(f"the chat template closes assistant message {index} with no special end-of-turn token")
