"""Bytes of text of each token, for metrics that can be compared between tokenizers."""

import json
from typing import Any

from transformers import PreTrainedTokenizerBase

_SPACE = "\u2581"
_BYTE = "<0x"


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Bytes of UTF-8 text of each token id; 0 for special tokens.

    A token of a byte-level vocabulary has one character for each byte. A token of a SentencePiece vocabulary is its
    text, with U+2581 for the space and `<0x..>` for a byte. Other tokens are decoded alone.
    """
    decoder = tokenizer.backend_tokenizer.decoder if tokenizer.is_fast else None
    state: Any = {"decoders": []} if decoder is None else json.loads(decoder.__getstate__())
    kinds = {step["type"] for step in state.get("decoders", [state])}
    added = tokenizer.added_tokens_decoder
    vocabulary = tokenizer.get_vocab()
    sizes = [0] * (max(vocabulary.values()) + 1)
    for token, token_id in vocabulary.items():
        if token_id in added:
            sizes[token_id] = 0 if added[token_id].special else len(token.encode())
        elif "ByteLevel" in kinds:
            sizes[token_id] = len(token)
        elif "ByteFallback" in kinds and len(token) == 6 and token.startswith(_BYTE):
            sizes[token_id] = 1
        elif kinds & {"Replace", "Metaspace"}:
            sizes[token_id] = len(token.replace(_SPACE, " ").encode())
        else:
            sizes[token_id] = len(tokenizer.decode([token_id]).encode())
    return sizes
