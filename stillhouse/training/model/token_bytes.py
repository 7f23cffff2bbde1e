"""The bytes of text of each token, for metrics and distributions that can be compared between tokenizers."""

import json
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

_SPACE = "\u2581"
_BYTE = "<0x"


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the number of bytes of UTF-8 text of each token id; 0 for special tokens."""
    sizes = [len(spelling) for spelling in token_spellings(tokenizer)]
    for token_id, token in tokenizer.added_tokens_decoder.items():
        if token.special and token_id < len(sizes):
            sizes[token_id] = 0
    return sizes


def token_spellings(tokenizer: PreTrainedTokenizerBase) -> list[bytes]:
    """Return the text of each token id in UTF-8, of special tokens their names; empty for ids without a token.

    A token of a byte-level vocabulary has one character for each byte. A token of a SentencePiece vocabulary is its
    text, with U+2581 for the space and `<0x..>` for a byte. Other tokens are decoded alone.
    """
    decoder = tokenizer.backend_tokenizer.decoder if tokenizer.is_fast else None
    state: Any = {"decoders": []} if decoder is None else json.loads(decoder.__getstate__())
    kinds = {step["type"] for step in state.get("decoders", [state])}
    byte_of = {character: value for value, character in bytes_to_unicode().items()}
    added = tokenizer.added_tokens_decoder
    vocabulary = tokenizer.get_vocab()
    spellings = [b""] * (max(vocabulary.values()) + 1)
    for token, token_id in vocabulary.items():
        if token_id in added:
            spellings[token_id] = token.encode()
        elif "ByteLevel" in kinds and all(character in byte_of for character in token):
            spellings[token_id] = bytes(byte_of[character] for character in token)
        elif "ByteFallback" in kinds and len(token) == 6 and token.startswith(_BYTE):
            spellings[token_id] = bytes([int(token[3:5], 16)])
        elif kinds & {"Replace", "Metaspace"}:
            spellings[token_id] = token.replace(_SPACE, " ").encode()
        else:
            spellings[token_id] = tokenizer.decode([token_id]).encode()
    return spellings
