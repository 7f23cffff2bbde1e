"""Columns as NumPy arrays."""

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HASH_KEY: Final = "stillhouse/rows."
"""16 bytes, as SipHash takes them."""


def numbers(column: pa.Array) -> "NDArray[np.float64]":
    """The values of a column of numbers or flags that are not null."""
    return column.drop_null().cast(pa.float64()).to_numpy(zero_copy_only=False)


def hashes(column: pa.Array) -> "NDArray[np.uint64]":
    """SipHash of each text, the same in any process."""
    from pandas.util import hash_array

    texts = column.fill_null("").to_numpy(zero_copy_only=False)
    return np.asarray(hash_array(texts.astype(object), hash_key=_HASH_KEY, categorize=False), dtype=np.uint64)
