"""Repeated rows and the best of each prompt, decided together: each depends on what the other keeps.

A group is a standing row and the rows that repeat it; at most one of them is kept. A near-duplicate is near to the
standing row, and two of them are one group even where they are not near to each other. In a group the standing row
comes first, then the others by the hash of their ids; in a prompt the preferred row does. Rows that something else
drops take no part, so that another row of the group stands in for them.

The rule is deferred acceptance (Gale and Shapley 1962, "College Admissions and the Stability of Marriage"): each group
offers its first row; each prompt holds the `rows_per_prompt` it prefers and refuses the others; a group that was
refused offers its next row. So a row is dropped as a repeat only if its group keeps one, and refused only if its prompt
keeps as many that it prefers. The outcome does not depend on the order of offers.

Later choices (quotas, diversity, target) drop rows because enough others are there; no repeat stands in for them.
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
    """Their prompt has rows enough that it prefers."""


class Groups(NamedTuple):
    """For each row the one it repeats at the end of all, which repeats none itself."""

    standing: npt.NDArray[np.intp]
    """Its place; their own for rows that repeat none."""
    is_near: Mask
    """Whether the row repeats it only nearly."""


def settle(rows: pd.DataFrame, alive: Mask, duplicates: Groups, rows_per_prompt: int | None) -> Settled:
    """What `alive` loses to repeats and to the bound on rows of a prompt; None bounds nothing."""
    groups, is_near = duplicates
    order = np.lexsort((rows["id"], groups != np.arange(len(rows)), groups))
    is_open, refused = alive.copy(), np.zeros(len(rows), bool)
    while True:
        offered = _first_of_each(groups, order[is_open[order]])
        if rows_per_prompt is not None:
            places = rank_in_prompt(rows, offered)
            refused[places.index[places >= rows_per_prompt]] = True
        waiting = is_open & ~offered
        if not np.isin(groups[waiting], groups[offered & refused]).any():
            break
        is_open &= ~refused
    is_near = is_near | np.isin(groups, groups[offered & is_near])
    return Settled(waiting & ~is_near, waiting & is_near, refused)


def duplicate_groups(rows: pd.DataFrame) -> Groups:
    """What each row repeats.

    Raises:
        InputError: a row repeats one that is not there.
    """
    groups, is_near = np.arange(len(rows)), rows["is_near"].to_numpy(copy=True)
    repeats = np.flatnonzero((rows["standing"] != rows["id"]) & ~rows["is_repeated"])
    if len(repeats) == 0:
        return Groups(groups, is_near)
    firsts = np.flatnonzero(~rows["is_repeated"])
    found = pd.Index(rows["id"].to_numpy()[firsts]).get_indexer(rows["standing"].to_numpy()[repeats])
    if (found < 0).any():
        raise InputError(
            f"{(found < 0).sum()} of {len(repeats)} rows repeat a row that is not among the {len(rows)} candidates; "
            "expected all in the shards given. Find duplicates again, over the same shards"
        )
    groups[repeats] = firsts[found]
    # An exact duplicate may repeat a near one: each round doubles how far a row has followed.
    for _ in range(len(rows).bit_length()):
        is_near |= is_near[groups]
        groups = groups[groups]
    return Groups(groups, is_near)


def _first_of_each(groups: npt.NDArray[np.intp], ordered: npt.NDArray[np.intp]) -> Mask:
    firsts = np.zeros(len(groups), bool)
    firsts[ordered[np.diff(groups[ordered], prepend=-1) != 0]] = True
    return firsts
