"""Accuracy of the teacher by tag, with intervals that account for several trajectories of one prompt."""

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.dataset.report.columns import hashes
from stillhouse.verification.intervals import ConfidenceInterval, Group, effective_sample_size, wilson_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONFIDENCE: Final = 0.95
"""Confidence level of the intervals."""


class Accuracy(NamedTuple):
    """Right and wrong answers, with an interval of their share."""

    right: int
    wrong: int
    interval: ConfidenceInterval

    @property
    def share(self) -> float:
        """Share of right answers among verified ones."""
        return self.right / (self.right + self.wrong)


class VerifiedRows:
    """Collects verified rows, at 13 bytes each."""

    def __init__(self) -> None:
        self._tag_codes: dict[str | None, int] = {}
        self._prompts: list[NDArray[np.uint64]] = []
        self._tags: list[NDArray[np.int32]] = []
        self._right: list[NDArray[np.bool_]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the verified rows of `batch`."""
        verified = batch.column("verified")
        known = batch.filter(verified.is_valid())
        tags = known.column("tag").dictionary_encode(null_encoding="encode")
        codes = [self._tag_codes.setdefault(tag, len(self._tag_codes)) for tag in tags.dictionary.to_pylist()]
        self._prompts.append(hashes(known.column("prompt_id")))
        self._tags.append(np.array(codes, dtype=np.int32)[tags.indices.to_numpy()])
        self._right.append(pc.drop_null(verified).to_numpy(zero_copy_only=False))

    def overall(self) -> Accuracy | None:
        """Accuracy over all verified rows; None without any."""
        prompts, _, right = self._arrays()
        return _accuracy(prompts, right) if len(right) else None

    def by_tag(self) -> dict[str | None, Accuracy]:
        """Accuracy by tag, sorted by name; None is for rows without a tag."""
        prompts, tags, right = self._arrays()
        order = np.argsort(tags, kind="stable")
        bounds = np.searchsorted(tags[order], np.arange(len(self._tag_codes) + 1))
        accuracies = {}
        for tag, code in sorted(self._tag_codes.items(), key=lambda item: (item[0] is None, item[0] or "")):
            rows = order[bounds[code] : bounds[code + 1]]
            accuracies[tag] = _accuracy(prompts[rows], right[rows])
        return accuracies

    def _arrays(self) -> "tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.bool_]]":
        return (
            np.concatenate(self._prompts or [np.zeros(0, np.uint64)]),
            np.concatenate(self._tags or [np.zeros(0, np.int32)]),
            np.concatenate(self._right or [np.zeros(0, np.bool_)]),
        )


def _accuracy(prompts: "NDArray[np.uint64]", right: "NDArray[np.bool_]") -> Accuracy:
    _, places = np.unique(prompts, return_inverse=True)
    sizes = np.bincount(places)
    sums = np.bincount(places, weights=right).astype(np.int64)
    kinds, times = np.unique(np.stack((sizes, sums), axis=1), axis=0, return_counts=True)
    groups = Counter({Group(size, total): n for (size, total), n in zip(kinds.tolist(), times.tolist(), strict=True)})
    num_right, num_rows = int(sums.sum()), len(right)
    interval = wilson_interval(num_right / num_rows, effective_sample_size(groups), CONFIDENCE)
    return Accuracy(num_right, num_rows - num_right, interval)
