import gzip

from stillhouse.labels.compression import MIN_BYTES, compression_ratio
from stillhouse.labels.repetition import repetition


def test_the_compression_ratio_is_that_of_gzip() -> None:
    text = "The total is the sum of its parts, each of which was given above. " * 8
    assert compression_ratio(text) == len(gzip.compress(text.encode())) / len(text)


def test_loops_without_words_compress_far_and_prose_does_not() -> None:
    prose = (
        "Anna has two apples and buys three more at the market, so she holds five. Ben owns twice as many pears as "
        "that, which makes ten, but he gives four of them to his sister. Together they therefore keep eleven pieces of "
        "fruit at the end of the day, not counting what the sister had before."
    )
    loop_ratio, prose_ratio = compression_ratio("=-" * 400), compression_ratio(prose)
    assert loop_ratio < 0.1 < 0.42 < prose_ratio
    assert repetition("=-" * 400) is None


def test_a_text_too_short_to_compress_has_no_ratio() -> None:
    assert compression_ratio("a" * (MIN_BYTES - 1)) is None
    assert compression_ratio("a" * MIN_BYTES) is not None
    assert compression_ratio("é" * (MIN_BYTES // 2)) is not None
