import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.http.bodies import BodyRefused, Decoder, adecoded, aread_within


def _bare(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush()


CODINGS = {"": bytes, "identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress, " GZIP ": gzip.compress}
# Some send it without its header.
CODINGS["Deflate"] = _bare


def read(coding: str, data: bytes, max_bytes: int, size: int = 1 << 16) -> bytes:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]

    return asyncio.run(aread_within(adecoded({"content-encoding": coding}, chunks()), max_bytes))


@given(st.sampled_from(list(CODINGS)), st.binary(max_size=400), st.integers(1, 50))
def test_a_body_comes_out_as_it_went_in_whatever_its_chunks(coding: str, data: bytes, size: int) -> None:
    assert read(coding, CODINGS[coding](data), 400, size) == data


@pytest.mark.parametrize("coding", ["gzip, gzip", "gzip,gzip,gzip", "br", "zstd", "deflate, identity", "x" * 500])
def test_a_coding_that_was_not_asked_for_is_refused(coding: str) -> None:
    with pytest.raises(BodyRefused, match="encoded as"):
        Decoder({"content-encoding": coding})


def test_a_body_is_decoded_in_pieces_no_further_than_it_is_read_and_as_its_headers_say() -> None:
    bomb = gzip.compress(bytes(100_000_000))
    pieces = Decoder({"content-encoding": "gzip"}).pieces(bomb)
    assert max(len(next(pieces)) for _ in range(5)) <= 1 << 18
    with pytest.raises(BodyRefused, match="1 MiB"):
        read("gzip", bomb, 1 << 20)
    with pytest.raises(BodyRefused, match="gzip"):
        read("gzip", b"hello", 100)
