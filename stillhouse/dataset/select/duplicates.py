"""Duplicates and the limit on rows of a prompt, decided together, since each depends on what the other keeps.

A group is an original row and the rows that repeat it; at most one of them is kept. Near-duplicates are near to the
original, not necessarily to each other. Within a group the original comes first, then the others by the hash of their
ids. Rows that something else drops take no part, so that another row of the group replaces them.

The rule is deferred acceptance (Gale and Shapley 1962, "College Admissions and the Stability of Marriage"): each group
proposes its first row; each prompt holds the `rows_per_prompt` it prefers and refuses the others; a refused group
proposes its next row. So a row is dropped as a duplicate only if its group keeps one, and refused only if its prompt
keeps as many that it prefers. The outcome does not depend on the order of proposals.

Later choices (quotas, diversity, target) drop rows because there are enough others; no duplicate replaces those.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from stillhouse.dataset.select.choices import Mask, rank_in_prompt
from stillhouse.errors import InputError


class Settled(NamedTuple):
    """Which rows are dropped, and why."""

    repeats: Mask
    """They repeat a kept row exactly."""
    near_repeats: Mask
    """They repeat a kept row nearly."""
    refused: Mask
    """Their prompt keeps enough rows that it prefers."""


class DuplicateGroups(NamedTuple):
    """For each row the original that it repeats, directly or through others."""

    original: npt.NDArray[np.intp]
    """Row number; that of the row itself if it repeats none."""
    is_near: Mask
    """Whether the row repeats it only nearly."""


def settle(rows: pd.DataFrame, remaining: Mask, duplicates: DuplicateGroups, rows_per_prompt: int | None) -> Settled:
    """What `remaining` loses to duplicates and to the limit on rows of a prompt; None for no limit."""
    groups, is_near = duplicates
    order = np.lexsort((rows["id"], groups != np.arange(len(rows)), groups))
    is_open, refused = remaining.copy(), np.zeros(len(rows), bool)
    while True:
        proposed = _first_of_each(groups, order[is_open[order]])
        if rows_per_prompt is not None:
            ranks = rank_in_prompt(rows, proposed)
            refused[ranks.index[ranks >= rows_per_prompt]] = True
        waiting = is_open & ~proposed
        if not np.isin(groups[waiting], groups[proposed & refused]).any():
            break
        is_open &= ~refused
    is_near = is_near | np.isin(groups, groups[proposed & is_near])
    return Settled(waiting & ~is_near, waiting & is_near, refused)


def duplicate_groups(rows: pd.DataFrame) -> DuplicateGroups:
    """The original of each row.

    Raises:
        InputError: a row repeats one that is missing.
    """
    groups, is_near = np.arange(len(rows)), rows["is_near"].to_numpy(copy=True)
    repeats = np.flatnonzero((rows["original"] != rows["id"]) & ~rows["is_repeated"])
    if len(repeats) == 0:
        return DuplicateGroups(groups, is_near)
    distinct = np.flatnonzero(~rows["is_repeated"])
    originals = pd.Index(rows["id"].to_numpy()[distinct]).get_indexer(rows["original"].to_numpy()[repeats])
    if (originals < 0).any():
        raise InputError(
            f"{(originals < 0).sum()} of {len(repeats)} rows repeat a row that is not among the {len(rows)} "
            "candidates; expected all in the shards given. Find duplicates again, over the same shards"
        )
    groups[repeats] = distinct[originals]
    # An exact duplicate may repeat a near one. Each round doubles the length of chains that are resolved.
    for _ in range(len(rows).bit_length()):
        is_near |= is_near[groups]
        groups = groups[groups]
    return DuplicateGroups(groups, is_near)


def _first_of_each(groups: npt.NDArray[np.intp], ordered: npt.NDArray[np.intp]) -> Mask:
    firsts = np.zeros(len(groups), bool)
    firsts[ordered[np.diff(groups[ordered], prepend=-1) != 0]] = True
    return firsts
