"""The most probable tokens at each that a model sampled, as an endpoint says it and as a journal keeps it.

OpenAI's form: `choices[0].logprobs.content` has an entry for each sampled token with its `logprob` and `top_logprobs`
(https://platform.openai.com/docs/api-reference/chat/object). A token is text with its `bytes`, or with vLLM's
`return_tokens_as_token_ids` the text `token_id:123`.

Dimensions: N sampled tokens, K most probable ones at each.
"""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from stillhouse.inference.scoring.scores import LEAST_LOGPROB, TopLogprobs

AS_ID: Final = "token_id:"
UNKNOWN: Final = -1
"""In place of a token that the endpoint did not name, or of one that it did not give."""
_REPLACED: Final = "\ufffd".encode()
_HEAD: Final = struct.Struct("<IIi")
"""N, K, and the number of spellings; -1 where there are ids."""


@dataclass(frozen=True, slots=True, eq=False)
class TopTokens:
    """The sampled tokens of one completion, and the most probable ones at each, under the endpoint's distribution."""

    tokens_N: np.ndarray
    """int32: ids, or indices of `spellings`; `UNKNOWN` for part of a character whose bytes the endpoint did not say."""
    logprobs_N: np.ndarray
    """float32, of the sampled tokens, in nats."""
    top: TopLogprobs
    """Where fewer than K are known, `UNKNOWN` with the least log-probability stands behind them, and the mass of those
    that are not belongs to all others."""
    spellings: list[bytes] | None
    """The distinct tokens in UTF-8; None where the endpoint gives ids."""

    def pack(self) -> str:
        """Return the tokens as text: base64 of what zlib makes of the arrays."""
        arrays = (self.tokens_N, self.logprobs_N, self.top.ids_NK, self.top.logprobs_NK, self.top.log_tail_N)
        spellings = [] if self.spellings is None else self.spellings
        parts = [
            _HEAD.pack(*self.top.ids_NK.shape, UNKNOWN if self.spellings is None else len(spellings)),
            *(array.tobytes() for array in arrays),
            np.array([len(spelling) for spelling in spellings], np.uint16).tobytes(),
            *spellings,
        ]
        return base64.b64encode(zlib.compress(b"".join(parts))).decode()

    @classmethod
    def of_bytes(cls, packed: bytes) -> Self:
        """Return what `pack` made a text of, from its bytes without base64; raise ValueError for other bytes."""
        try:
            content = memoryview(zlib.decompress(packed))
            num_tokens, num_top, num_spellings = _HEAD.unpack_from(content)
            place = _HEAD.size

            def take(kind: type, count: int) -> np.ndarray:
                nonlocal place
                array: np.ndarray = np.frombuffer(content, kind, count, place)
                place += array.nbytes
                return array

            tokens_N, logprobs_N = take(np.int32, num_tokens), take(np.float32, num_tokens)
            ids_NK, logprobs_NK = (
                take(kind, num_tokens * num_top).reshape(num_tokens, num_top) for kind in (np.int32, np.float16)
            )
            top = TopLogprobs(ids_NK, logprobs_NK, take(np.float16, num_tokens))
            if num_spellings == UNKNOWN:
                return cls(tokens_N, logprobs_N, top, None)
            sizes = take(np.uint16, num_spellings).tolist()
            return cls(tokens_N, logprobs_N, top, [take(np.uint8, size).tobytes() for size in sizes])
        except (zlib.error, struct.error, ValueError) as error:
            raise ValueError(f"expected packed log-probabilities, saw {packed[:20]!r}: {error}") from error


def read_top_tokens(logprobs: Any, top_k: int) -> TopTokens | None:
    """Return the `top_k` most probable tokens at each sampled one; None where the endpoint does not give them.

    `logprobs` are the choice's, as they came.
    """
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(entries, list) or not entries or not all(map(_is_scored, entries)):
        return None
    sampled = [_token(entry) for entry in entries]
    best = [_best(entry.get("top_logprobs"), top_k) for entry in entries]
    if not all(best):
        return None
    named = [*sampled, *(token for pairs in best for token, _ in pairs)]
    with_ids = any(isinstance(token, int) for token in named)
    distinct = list(dict.fromkeys(token for token in named if isinstance(token, int if with_ids else bytes)))
    numbers = {token: token if with_ids else number for number, token in enumerate(distinct)}
    ids_NK = np.full((len(entries), top_k), UNKNOWN, np.int32)
    logprobs_NK = np.full((len(entries), top_k), LEAST_LOGPROB)
    for row, pairs in enumerate(best):
        known = [(numbers[token], logprob) for token, logprob in pairs if token in numbers]
        for column, pair in enumerate(known):
            ids_NK[row, column], logprobs_NK[row, column] = pair
    return TopTokens(
        np.array([UNKNOWN if token is None else numbers.get(token, UNKNOWN) for token in sampled], np.int32),
        np.array([min(entry["logprob"], 0.0) for entry in entries], np.float32),
        TopLogprobs.rounded(ids_NK, logprobs_NK),
        None if with_ids else [token for token in distinct if isinstance(token, bytes)],
    )


def _is_scored(entry: Any) -> bool:
    value = entry.get("logprob") if isinstance(entry, dict) else None
    return isinstance(value, int | float) and not math.isnan(value)


def _token(entry: Any) -> int | bytes | None:
    """Return the token's id, else its bytes; None for part of a character whose bytes are not told."""
    text, written = entry.get("token"), entry.get("bytes")
    if isinstance(text, str) and text.startswith(AS_ID) and text.removeprefix(AS_ID).isdecimal():
        return int(text.removeprefix(AS_ID))
    if isinstance(written, list) and all(isinstance(value, int) and 0 <= value < 256 for value in written):
        spelling = bytes(written)
    elif isinstance(text, str):
        spelling = text.encode(errors="replace")
    else:
        return None
    # SGLang and others write the bytes of U+FFFD for part of a character.
    return spelling if spelling and _REPLACED not in spelling else None


def _best(entries: Any, top_k: int) -> Sequence[tuple[int | bytes | None, float]]:
    """Return the tokens and log-probabilities, best first; of two with the same text the better."""
    pairs = [(_token(entry), float(entry["logprob"])) for entry in entries or () if _is_scored(entry)]
    pairs.sort(key=lambda pair: -pair[1])
    first: dict[int | bytes | None, float] = {}
    for token, logprob in pairs[:top_k]:
        first.setdefault(token, min(logprob, 0.0))
    return list(first.items())
