"""Reasons why a trajectory is dropped. A row's reasons are a bit mask, so that a million rows take 8 MB."""

from itertools import groupby, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from stillhouse.labels import FILTERS

PASS_RATE: Final = "pass_rate"
NOT_PREFERRED: Final = "not_preferred"
QUOTA: Final = "quota"
SURPLUS: Final = "surplus"
DUPLICATE: Final = "duplicate"
NEAR_DUPLICATE: Final = "near_duplicate"

STEPS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    *(
        (step, tuple(dict.fromkeys(rule.reason.name for rule in rules)))
        for step, rules in groupby(FILTERS, lambda rule: rule.step)
    ),
    ("of a prompt within the pass rates", (PASS_RATE,)),
    ("preferred in its prompt", (NOT_PREFERRED,)),
    ("within the quota of its tag", (QUOTA,)),
    ("within the target", (SURPLUS,)),
)
"""Name and drop reasons of each step of the funnel; the name describes the rows that pass."""
BITS: Final[dict[str, int]] = {
    reason: 1 << place for place, reason in enumerate(reason for _, reasons in STEPS for reason in reasons)
}
"""The bit of each reason, of 64."""


def _meaning(reason: str) -> str:
    rules = [rule for rule in FILTERS if rule.reason.name == reason]
    keys = dict.fromkeys(f"dataset.filters.{rule.limit.key}" for rule in rules if rule.limit is not None)
    return rules[0].reason.meaning + (f" ({', '.join(keys)})" if keys else "")


MEANINGS: Final[dict[str, str]] = {
    **{rule.reason.name: _meaning(rule.reason.name) for rule in FILTERS},
    PASS_RATE: "the prompt's share of right trajectories is outside dataset.selection.pass_rate",
    NOT_PREFERRED: "its prompt has dataset.selection.rows_per_prompt rows that dataset.selection.prefer puts first",
    QUOTA: "its tag has as many rows as dataset.selection.quotas allows",
    SURPLUS: "dataset.selection.target_rows rows are there without it",
}
"""One sentence by reason, with the config key to loosen if there is one."""


def reasons_in(bits: int) -> list[str]:
    """Return the reasons whose bits are set, in the order of the funnel."""
    return [reason for reason, bit in BITS.items() if bits & bit]


def funnel(reasons: npt.NDArray[np.uint64]) -> list[tuple[str, int]]:
    """Return each step's name and the number of rows that pass it and all before."""
    passed, mask = [], 0
    for step, step_reasons in STEPS:
        mask |= sum(BITS[reason] for reason in step_reasons)
        passed.append((step, int(np.count_nonzero((reasons & np.uint64(mask)) == 0))))
    return passed


def explanation(reasons: npt.NDArray[np.uint64]) -> str:
    """Return lines of text: the steps that lose rows, and count and meaning of each reason."""
    steps = [
        f"  {after:>8}  {step}\n"
        for (_, before), (step, after) in pairwise([("", len(reasons)), *funnel(reasons)])
        if after < before
    ]
    counts = {reason: int(np.count_nonzero(reasons & np.uint64(bit))) for reason, bit in BITS.items()}
    common = sorted((reason for reason in counts if counts[reason]), key=lambda reason: -counts[reason])
    meanings = [f"  {reason}: {MEANINGS[reason]}\n" for reason in common]
    totals = ", ".join(f"{reason} {counts[reason]}" for reason in common) or "none"
    return f"{''.join(steps)}Reasons: {totals}\n{''.join(meanings)}"
