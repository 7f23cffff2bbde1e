"""The most probable tokens at each that a model sampled, as an endpoint says it and as a journal keeps it.

OpenAI's form: `choices[0].logprobs.content` has an entry for each sampled token with its `logprob` and `top_logprobs`
(https://platform.openai.com/docs/api-reference/chat/object). A token is text with its `bytes`, or with vLLM's
`return_tokens_as_token_ids` the text `token_id:123`.

Dimensions: N sampled tokens, K most probable ones at each.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Self

import numpy as np

from stillhouse.inference.scoring.scores import LEAST_LOGPROB, MOST_LOGPROB, TopLogprobs, best_first, numbers_of

AS_ID: Final = "token_id:"
UNKNOWN: Final = -1
"""In place of a token that the endpoint did not name, or of one that it did not give."""
_REPLACED: Final = "\ufffd".encode()
_DIGITS: Final = frozenset(range(1, 10))  # how many an id has, in int32
_MAX_BYTES: Final = (1 << 16) - 1
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
        return base64.b64encode(zlib.compress(b"".join(parts), level=1)).decode()

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
    if not isinstance(entries, list) or not entries:
        return None
    logprobs_N = numbers_of(_values(entries, "logprob"))
    lists = [best if isinstance(best, list) else [] for best in _values(entries, "top_logprobs")]
    listed = list(chain.from_iterable(lists))
    values = numbers_of(_values(listed, "logprob"))
    is_scored = values <= MOST_LOGPROB
    rows = np.repeat(np.arange(len(lists)), list(map(len, lists)))
    counts_N = np.bincount(rows[is_scored], minlength=len(lists))
    if not (logprobs_N <= MOST_LOGPROB).all() or not counts_N.all():
        return None
    places_NK, logprobs_NK = best_first(np.flatnonzero(is_scored), values[is_scored], counts_N, top_k)
    is_there = places_NK != UNKNOWN
    # Spellings are numbered as they appear, so only those that are kept may be read.
    numbers, spellings = _numbered([*entries, *map(listed.__getitem__, places_NK[is_there].tolist())])
    places_NK[is_there] = numbers[len(entries) :]
    return TopTokens(
        numbers[: len(entries)],
        np.minimum(logprobs_N, 0.0).astype(np.float32),
        TopLogprobs.rounded(*_known_first(places_NK, np.minimum(logprobs_NK, 0.0))),
        spellings,
    )


def _values(entries: Sequence[Any], key: str) -> list[Any]:
    """Return what each entry has under a key, None where it has nothing or is no object."""
    try:
        return list(map(itemgetter(key), entries))
    except (KeyError, TypeError):
        return [entry.get(key) if isinstance(entry, dict) else None for entry in entries]


def _numbered(entries: Sequence[Any]) -> tuple[np.ndarray, list[bytes] | None]:
    """Return the tokens' ids and None, or indices of their spellings and these."""
    texts = [text if isinstance(text, str) else "" for text in _values(entries, "token")]
    ids = ("," + ",".join(texts)).split("," + AS_ID)[1:]
    if len(ids) == len(texts) and "".join(ids).isdecimal() and set(map(len, ids)) <= _DIGITS:
        return np.array(list(map(int, ids)), np.int32), None
    tokens = _tokens(texts, _values(entries, "bytes"))
    distinct = dict.fromkeys(tokens)
    if any(isinstance(token, int) for token in distinct):
        return np.array([token if isinstance(token, int) else UNKNOWN for token in tokens], np.int32), None
    # SGLang and others write the bytes of U+FFFD for part of a character.
    spellings = [token for token in distinct if token and len(token) <= _MAX_BYTES and _REPLACED not in token]
    numbers = dict.fromkeys(distinct, UNKNOWN) | {token: number for number, token in enumerate(spellings)}
    return np.array(list(map(numbers.__getitem__, tokens)), np.int32), spellings


def _tokens(texts: Sequence[str], written: Sequence[Any]) -> list[Any]:
    """Return each token's id, else its bytes; None for an id that no vocabulary has."""
    if set(map(type, written)) == {list} and AS_ID not in "".join(texts):
        with suppress(TypeError, ValueError):
            return list(map(bytes, written))
    return list(map(_token, texts, written))


def _token(text: str, written: Any) -> int | bytes | None:
    digits = text.removeprefix(AS_ID)
    if digits != text and digits.isdecimal():
        return int(digits) if len(digits) in _DIGITS else None
    if isinstance(written, list):
        with suppress(TypeError, ValueError):
            return bytes(written)
    return text.encode(errors="replace")


def _known_first(numbers_NK: np.ndarray, logprobs_NK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each row with what is unknown, or stands earlier in it, at its end and of the least log-probability."""
    by_number_NK = np.argsort(numbers_NK, axis=1, kind="stable")
    sorted_NK = np.take_along_axis(numbers_NK, by_number_NK, axis=1)
    is_known = sorted_NK != UNKNOWN
    is_known[:, 1:] &= sorted_NK[:, 1:] != sorted_NK[:, :-1]
    np.put_along_axis(is_known, by_number_NK, is_known.copy(), axis=1)
    order_NK = np.argsort(~is_known, axis=1, kind="stable")
    return (
        np.take_along_axis(np.where(is_known, numbers_NK, UNKNOWN), order_NK, axis=1),
        np.take_along_axis(np.where(is_known, logprobs_NK, LEAST_LOGPROB), order_NK, axis=1),
    )
