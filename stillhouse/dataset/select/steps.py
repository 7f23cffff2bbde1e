"""The funnel: the steps from rollouts to kept rows, with the reasons that drop rows at each."""

from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

from stillhouse.dataset.select.filters import FILTERS
from stillhouse.dataset.select.reasons import BITS, MEANINGS, DropReason

STEPS: Final[tuple[tuple[str, tuple[DropReason, ...]], ...]] = (
    *((step, tuple(one.reason for one in filters)) for step, filters in groupby(FILTERS, lambda one: one.step)),
    ("of a prompt within the pass rates", (DropReason.PASS_RATE,)),
    ("preferred in its prompt", (DropReason.NOT_PREFERRED,)),
    ("within the quota of its tag", (DropReason.QUOTA,)),
    ("diverse", (DropReason.NOT_DIVERSE,)),
    ("within the target", (DropReason.SURPLUS,)),
)
"""Each step's name, which describes the rows that pass it, and the reasons that drop rows there."""


def funnel(reasons: npt.NDArray[np.uint64]) -> list[tuple[str, int]]:
    """Each step's name and the number of rows that no reason up to there speaks against."""
    left, against = [], 0
    for step, found in STEPS:
        against |= sum(BITS[reason] for reason in found)
        left.append((step, int(np.count_nonzero((reasons & np.uint64(against)) == 0))))
    return left


def explanation(reasons: npt.NDArray[np.uint64]) -> str:
    """The steps that lose rows as lines of text, how often each reason holds, and what those reasons mean."""
    left = [len(reasons), *(num_rows for _, num_rows in funnel(reasons))]
    lost = (
        f"  {after:>8}  {step}"
        for (step, _), before, after in zip(STEPS, left, left[1:], strict=False)
        if after < before
    )
    steps = "\n".join(lost)
    counts = {reason: int(np.count_nonzero(reasons & np.uint64(bit))) for reason, bit in BITS.items()}
    common = sorted((reason for reason in counts if counts[reason]), key=lambda reason: -counts[reason])
    return f"{steps}\nReasons: {', '.join(f'{reason} {counts[reason]}' for reason in common) or 'none'}\n" + "".join(
        f"  {reason}: {MEANINGS[reason]}\n" for reason in common
    )
