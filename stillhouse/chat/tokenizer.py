"""Loading a tokenizer, encoding and decoding; the transformers wrapper is bypassed for fast tokenizers."""

from collections.abc import Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from stillhouse.chat.refs import NO_CODE, adapter_base, base_revision, resolve_model
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template_defaults import with_template_defaults
from stillhouse.config.section import ChatTemplateKwargs
from stillhouse.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(
    ref: str, chat_template_kwargs: ChatTemplateKwargs = MappingProxyType({})
) -> "PreTrainedTokenizerBase":
    """Return the tokenizer of a model ref; a student's folder holds its own, also when it holds an adapter.

    `chat_template_kwargs` become the defaults of its template's variables. Raises ConfigError if it cannot be loaded,
    has no chat template or no end token, or its template lacks a variable.
    """
    # Imports torch, which takes seconds.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(ref), **NO_CODE)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"tokenizer of model {ref!r} cannot be loaded: {error}") from error
    for attribute in ("chat_template", "eos_token_id"):
        if getattr(tokenizer, attribute) is None:
            raise ConfigError(f"tokenizer of model {ref!r} has no {attribute}; expected a chat model's tokenizer")
    return with_template_defaults(tokenizer, chat_template_kwargs)


class PlacedTokens(NamedTuple):
    """Tokens with their offsets in the text; both lists have one entry per token."""

    ids: list[int]
    starts: list[int]
    """Index of the token's first character; tokens that share a character share its index."""


def encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Return the token ids of a text in which special tokens are already written."""
    return encode_all(tokenizer, [text])[0]


def encode_all(tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> list[list[int]]:
    """Return `encode` of many texts."""
    if not tokenizer.is_fast:
        return [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]
    # The wrapper's masks, offsets and copies cost more than the tokens themselves.
    return [encoding.ids for encoding in _backend(tokenizer).encode_batch_fast(texts, add_special_tokens=False)]


def _backend(tokenizer: "PreTrainedTokenizerBase") -> Any:
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return backend


def encode_placed(tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> list[PlacedTokens]:
    """Return `encode_all` with the offsets of the tokens; raises TemplateError for a slow tokenizer, which has none."""
    if not tokenizer.is_fast:
        raise TemplateError(
            f"{type(tokenizer).__name__} does not tell where its tokens stand in a text; expected a fast tokenizer"
        )
    encodings = _backend(tokenizer).encode_batch(texts, add_special_tokens=False)
    return [PlacedTokens(encoding.ids, _starts(encoding.offsets)) for encoding in encodings]


def decode_all(tokenizer: "PreTrainedTokenizerBase", sequences: list[list[int]]) -> list[str]:
    """Return the texts of many token sequences, special tokens included."""
    if not tokenizer.is_fast:
        return [tokenizer.decode(ids) for ids in sequences]
    return tokenizer.backend_tokenizer.decode_batch(sequences, skip_special_tokens=False)


def special_ids(tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Return the ids of the special tokens."""
    return frozenset(token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special)


def special_tokens(tokenizer: "PreTrainedTokenizerBase") -> tuple[str, ...]:
    """Return the texts of the special tokens, longest first."""
    texts = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return tuple(sorted(texts, key=len, reverse=True))


def end_of_turn(ids: Sequence[int], special: Set[int], index: int) -> int:
    """Return the position of the last special token in the ids of assistant message `index`; raise if there is none."""
    for place in range(len(ids) - 1, -1, -1):
        if ids[place] in special:
            return place
    raise TemplateError(f"the chat template closes assistant message {index} with no special end-of-turn token")


def _starts(offsets: list[tuple[int, int]]) -> list[int]:
    """Return where tokens start, including spaces before them, which byte-level tokenizers may leave out of offsets."""
    starts: list[int] = []
    end = 0
    for start, stop in offsets:
        starts.append(min(start, end))
        end = max(end, stop)
    return starts


def num_positions(ref: str) -> int | None:
    """Return the most tokens that a model reads, by its config alone; None where it names none."""
    from transformers import AutoConfig

    folder = Path(resolve_model(ref))
    base = resolve_model(adapter_base(folder) or ref)
    config = AutoConfig.from_pretrained(base, revision=base_revision(folder), **NO_CODE)
    return getattr(config.get_text_config(), "max_position_embeddings", None)
