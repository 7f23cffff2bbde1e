"""Bodies of answers, decoded piece by piece and up to a bound.

300 bytes of gzip in gzip in gzip are 8 GiB. So an answer may be encoded once, in a requested coding, and only up to the
reader's bound is it decoded.
"""

import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from typing import Final

ACCEPT_ENCODING: Final = "gzip, deflate"
"""Codings that can be decoded in pieces everywhere."""
MAX_ANSWER_BYTES: Final = 64 << 20
"""Longest answer of an endpoint: a completion of 128,000 tokens with ids and log-probabilities has some 20 MB."""

_PIECE_BYTES: Final = 1 << 18
_CODINGS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class BodyRefused(Exception):
    """An answer that is not read; the message says why and follows the words `the answer`."""


class Decoder:
    """Decodes the body of an answer, whose headers are looked up by names in lower case.

    Raises BodyRefused if it is encoded more than once, or in a coding that was not requested.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        coding = headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity", *_CODINGS):
            raise BodyRefused(f"is encoded as {coding[:80]!r}; expected {ACCEPT_ENCODING} or nothing, and once")
        self._coding = coding
        self._inflating: zlib._Decompress | None = None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the next bytes decoded, in pieces of at most 256 KiB; raise BodyRefused if they are no such code."""
        if self._coding not in _CODINGS:
            yield data
            return
        if self._inflating is None and data:
            # Some servers send `deflate` without the header of zlib, which begins with 8 in its lower half.
            is_bare = self._coding == "deflate" and data[0] & 0xF != 8
            self._inflating = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else _CODINGS[self._coding])
        try:
            while self._inflating is not None and (piece := self._inflating.decompress(data, _PIECE_BYTES)):
                yield piece
                data = self._inflating.unconsumed_tail
        except zlib.error as error:
            raise BodyRefused(f"is not encoded as {self._coding}, as its headers say: {error}") from error


async def aread_within(pieces: AsyncIterable[bytes], max_bytes: int) -> bytes:
    """Return the body put together; raise BodyRefused if it is longer than `max_bytes`."""
    body = bytearray()
    async for piece in pieces:
        if len(body) + len(piece) > max_bytes:
            raise BodyRefused(f"is longer than {max_bytes >> 20} MiB")
        body += piece
    return bytes(body)


async def complete_lines(pieces: AsyncIterable[bytes], max_line_bytes: int) -> AsyncIterator[bytes]:
    """Yield the bytes in chunks that end at line feeds, the last perhaps not; raise BodyRefused for a long line."""
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        end = rest.rfind(b"\n", len(rest) - len(piece)) + 1
        if end:
            yield bytes(rest[:end])
            del rest[:end]
        elif len(rest) > max_line_bytes:
            raise BodyRefused(f"has a line of more than {max_line_bytes >> 20} MiB")
    if rest:
        yield bytes(rest)


async def adecoded(headers: Mapping[str, str], chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the decoded pieces of a body that arrives in chunks; raise BodyRefused as `Decoder`."""
    decoder = Decoder(headers)
    async for chunk in chunks:
        for piece in decoder.pieces(chunk):
            yield piece
