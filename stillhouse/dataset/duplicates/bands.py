"""Likely similar signatures without comparing all pairs: locality-sensitive hashing by bands.

Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4: a signature is cut into `b` bands of `r`
values; two texts of Jaccard similarity `s` agree in at least one whole band with probability `1 - (1 - s^r)^b`.
"""

import math
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stillhouse.dataset.duplicates.signatures import NUM_HASHES, SIGNATURE_TYPE
from stillhouse.dataset.words import MULTIPLIER, Hashes
from stillhouse.errors import ConfigError

RECALL: Final = 0.98
"""Minimum share of pairs at the threshold that some band proposes."""
_DEVIATIONS: Final = 3.0
"""Standard deviations that a pair's estimate may lie below the threshold; 0.1 % of pairs at the threshold lie lower."""
_NEIGHBOURS: Final = 8
"""A text is paired with this many first and last texts before it in its bucket, so that a thousand texts from one
template do not make half a million pairs."""
_PAIRS_OF_TEXT: Final = 64
"""Maximum pairs of a text with earlier ones."""
_CHUNK: Final = 1 << 18
_PENDING: Final = 1 << 23

Places = npt.NDArray[np.int64]
Banded = npt.NDArray[np.uint32]
"""Shape `[number of bands, number of texts, width of a band]`."""


class Bands(NamedTuple):
    """How signatures are cut into bands."""

    number: int
    width: int
    """Values of one band."""

    @classmethod
    def for_threshold(cls, threshold: float) -> "Bands":
        """Return the widest bands, with the fewest pairs below `threshold`, that propose `RECALL` of the pairs at it.

        Raises ConfigError if even bands of one value propose fewer.
        """
        for width in range(NUM_HASHES, 0, -1):
            number = NUM_HASHES // width
            if 1 - (1 - threshold**width) ** number >= RECALL:
                return cls(number, width)
        lowest = 1 - (1 - RECALL) ** (1 / NUM_HASHES)
        raise ConfigError(
            f"dataset.duplicates.threshold = {threshold}: expected {math.ceil(lowest * 100) / 100} or more; below, "
            f"signatures of {NUM_HASHES} hashes find less than {RECALL:.0%} of the near-duplicates"
        )


def banded_signatures(path: Path, num_texts: int, bands: Bands) -> Banded:
    """Return room on disk for the signatures of numbered texts; that of a text never written stays zeros.

    It lies band by band, so that one band of all texts is read at once. Values that fill no band are left out.
    """
    return np.memmap(path, SIGNATURE_TYPE, "w+", shape=(bands.number, num_texts, bands.width))


def likely_pairs(signatures: Banded, texts: Places, threshold: float) -> tuple[Places, Places]:
    """Return pairs of texts whose similarity may reach `threshold`, a Jaccard similarity, by their signatures.

    `texts` are numbers in order of precedence. The result is the later and the earlier index into `texts` of each pair,
    sorted by both; it is a function of the signatures in order.
    """
    kept = np.empty(0, np.uint64)
    pending = kept
    for number, band in enumerate(signatures, start=1):
        pending = np.union1d(pending, _pairs_in_buckets(_keys(band, texts)))
        if len(pending) > _PENDING or number == len(signatures):
            similar = _similar(signatures, texts, pending, threshold)
            kept, pending = _earliest(np.union1d(kept, pending[similar])), pending[:0]
    return _unpacked(kept)


def _keys(values: npt.NDArray[np.uint32], texts: Places) -> Hashes:
    keys = np.zeros(len(texts), np.uint64)
    for column in values.T:
        keys *= MULTIPLIER
        keys += column[texts]
    return keys


def _pairs_in_buckets(keys: Hashes) -> Hashes:
    """Return pairs of indices with equal keys, packed and sorted."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    positions = np.arange(len(keys))
    opens = np.append(True, ordered[1:] != ordered[:-1]) if len(keys) else np.empty(0, bool)
    starts = np.maximum.accumulate(np.where(opens, positions, 0))
    later = positions[positions > starts]
    first = starts[later]
    pairs = []
    for distance in range(_NEIGHBOURS):
        before = later - 1 - distance
        pairs.append(_packed(order, later, before, before >= first))
        from_start = first + distance
        pairs.append(_packed(order, later, from_start, from_start < later - _NEIGHBOURS))
    return np.sort(np.concatenate(pairs))


def _packed(order: Places, later: Places, earlier: Places, mask: npt.NDArray[np.bool_]) -> Hashes:
    return order[later[mask]].astype(np.uint64) << np.uint64(32) | order[earlier[mask]].astype(np.uint64)


def _unpacked(pairs: Hashes) -> tuple[Places, Places]:
    return (pairs >> np.uint64(32)).astype(np.int64), (pairs & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _similar(signatures: Banded, texts: Places, pairs: Hashes, threshold: float) -> npt.NDArray[np.bool_]:
    """Return whether enough values of a pair's signatures are equal; their share estimates the Jaccard similarity."""
    num_values = signatures.shape[0] * signatures.shape[2]
    equal = np.zeros(len(pairs), np.int32)
    for band in signatures:
        for start in range(0, len(pairs), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            later, earlier = _unpacked(pairs[chunk])
            equal[chunk] += np.count_nonzero(band[texts[later]] == band[texts[earlier]], axis=1)
    deviation = math.sqrt(threshold * (1 - threshold) / num_values)
    return equal >= (threshold - _DEVIATIONS * deviation) * num_values


def _earliest(pairs: Hashes) -> Hashes:
    """Return the first `_PAIRS_OF_TEXT` of the sorted pairs of each later text."""
    later, _ = _unpacked(pairs)
    return pairs[np.arange(len(pairs)) - np.searchsorted(later, later) < _PAIRS_OF_TEXT]
