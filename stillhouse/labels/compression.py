"""How far the sampled text compresses."""

import zlib
from typing import Final

from stillhouse.labels.declare import Column, Kind, Label, Limit, Measure, Reason, below, number

MIN_BYTES: Final = 256
"""At 64 bytes English prose comes to 1.22 and a loop of 40 characters to 0.92, since gzip's header takes 18 bytes; at
256 bytes they come to 0.77 and 0.23."""
_GZIP_WINDOW: Final = 31


def compression_ratio(text: str) -> float | None:
    """Return the bytes of the text after gzip over its bytes in UTF-8; None below `MIN_BYTES`.

    Detects what `repetition` cannot: loops without spaces, of symbols, or shorter than a word. The inverse of Whisper's
    `compression_ratio` (Radford et al. 2022, arXiv 2212.04356, section 4.5), whose limit of 2.4 is 0.42 here.
    """
    content = text.encode(errors="replace")
    return len(zlib.compress(content, wbits=_GZIP_WINDOW)) / len(content) if len(content) >= MIN_BYTES else None


COMPRESSION: Final = Label(
    place=60,
    columns=(
        Column("compression_ratio", Kind.REAL, "gzip size of the sampled text over its size; null for text too short",
               Measure("Compression ratio", is_drawn=False), lambda texts: compression_ratio(texts.sampled_text)),
    ),
    filters=(
        below("compression_ratio", Reason("compressible", "the sampled text compresses too far"),
            "not repeating itself", Limit("min_compression_ratio", number(float, gt=0.0),
            "Smallest size of the sampled text after gzip, as a share of its size before; loops compress far. Prose "
            "has 0.3 or more, a long loop less than 0.1."), 120),
    ),
)  # fmt: skip
