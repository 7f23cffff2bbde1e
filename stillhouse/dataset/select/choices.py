"""Choices among the rows that pass the filters. None of them depends on the order of rows in files.

Quotas and the target are nested: a larger one keeps what a smaller one keeps. Every prompt gives one row before any
prompt gives a second; ties are broken by the hash of the row's id.

Duplicates and the limit on rows of a prompt are decided together, since each depends on what the other keeps. A group
is an original row and the rows that repeat it; at most one of them is kept. Within a group the original comes first,
then the others by the hash of their ids. The rule is deferred acceptance (Gale and Shapley 1962, "College Admissions
and the Stability of Marriage"): each group proposes its first row; each prompt holds the `rows_per_prompt` it prefers
and refuses the others; a refused group proposes its next row. So a row is dropped as a duplicate only if its group
keeps one, and refused only if its prompt keeps as many that it prefers. The outcome does not depend on the order of
proposals. Rows that a filter drops take no part; no duplicate replaces those that later choices (quotas,
target) drop, because there are enough others.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from stillhouse.config.dataset import SelectionConfig
from stillhouse.errors import ConfigError, InputError

Mask = npt.NDArray[np.bool_]
"""One flag for each of all rows."""


def preference(rows: pd.DataFrame, selection: SelectionConfig) -> npt.NDArray[np.int32]:
    """Return the rank of each row in an order that keeps prompts together and puts the preferred row of each first.

    Within a prompt: right before unverified before wrong rows; then `selection.prefer`, unknown values last; then the
    sample index; then the id's hash.
    """
    by = {
        "first": rows["sample_index"],
        "shortest": rows["size"],
        "fewest_tool_calls": rows["num_tool_calls"],
        "score": -rows["score"],
    }[selection.prefer.partition(":")[0]]
    correctness = np.select([rows["verified"] == 1, rows["verified"] == -1], [0, 1], 2)
    ranks = np.empty(len(rows), np.int32)
    ranks[np.lexsort((rows["id"], rows["sample_index"], by, correctness, rows["prompt"]))] = np.arange(len(rows))
    return ranks


def rank_in_prompt(rows: pd.DataFrame, remaining: Mask) -> "pd.Series[int]":
    """Return the rank of each row of `remaining` within its prompt, from 0, the preferred first; indexed by row."""
    return (
        rows.loc[remaining, ["prompt", "preference"]].sort_values("preference").groupby("prompt", sort=False).cumcount()
    )


def spread(rows: pd.DataFrame, remaining: Mask) -> npt.NDArray[np.intp]:
    """Return the rows of `remaining` by rank in their prompt, then by the id's hash."""
    ranks = rank_in_prompt(rows, remaining)
    return ranks.index.to_numpy()[np.lexsort((rows["id"][ranks.index], ranks))]


def pass_rates(rows: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return the pass rate of each row's prompt: right rows over verified ones, NaN where none is verified.

    All candidates count, whatever else drops them.
    """
    counted = rows["verified"].where((rows["verified"] >= 0) & ~rows["is_repeated"])
    return counted.groupby(rows["prompt"]).transform("mean").to_numpy()


def outside_band(rates: npt.NDArray[np.float64], selection: SelectionConfig) -> Mask:
    """Return the rows whose pass rate is outside `selection.pass_rate`; the limits themselves are allowed."""
    low, high = selection.pass_rate or (None, None)
    return (rates < (0.0 if low is None else low)) | (rates > (1.0 if high is None else high))


def over_quota(rows: pd.DataFrame, remaining: Mask, quotas: Mapping[str, int]) -> Mask:
    """Return rows of `remaining` beyond the quota of their tag; tags without a quota keep all."""
    dropped = np.zeros(len(rows), bool)
    for tag, quota in quotas.items():
        dropped[spread(rows, remaining & (rows["tag"] == tag).to_numpy())[quota:]] = True
    return dropped


def check_quotas(quotas: Mapping[str, int], tags: Collection[str]) -> None:
    """Raise ConfigError for a quota of a tag that no row has."""
    if unknown := sorted(set(quotas) - set(tags)):
        raise ConfigError(
            f"dataset.selection.quotas names {', '.join(map(repr, unknown))}, which no trajectory is tagged; seen: "
            f"{', '.join(map(repr, sorted(tags))) or 'no tags'}. Correct the tag or take it out"
        )


def over_target(rows: pd.DataFrame, remaining: Mask, target: int | None) -> Mask:
    """Return rows of `remaining` beyond the `target`; None keeps all."""
    dropped = np.zeros(len(rows), bool)
    if target is not None:
        dropped[spread(rows, remaining)[target:]] = True
    return dropped


def in_validation(rows: pd.DataFrame, kept: Mask, fraction: float) -> Mask:
    """Return rows of `kept` in the validation split: whole clusters of near-duplicate prompts, of every tag.

    A cluster validates if its draw, a hash of its name alone, is below `fraction`. A tag that has
    `1 / fraction` clusters or more but none below gives the one of lowest draw. A cluster has the tag of the prompt it
    is named after, its smallest prompt id.

    When rows are added, a cluster below `fraction` keeps validating and every other keeps training, with two
    exceptions: rows of a tag move at most one of its clusters, the lowest; and a new prompt that joins two clusters, or
    precedes a near one in the order of ids, renames the cluster and so draws again.
    """
    clusters = rows.loc[kept, ["cluster", "draw"]].drop_duplicates("cluster").merge(_cluster_tags(rows), on="cluster")
    clusters["validates"] = clusters["draw"] < fraction
    for _, of_tag in clusters.groupby("tag"):
        if len(of_tag) * fraction >= 1 and not of_tag["validates"].any():
            clusters.loc[of_tag["draw"].idxmin(), "validates"] = True
    return kept & rows["cluster"].isin(clusters.loc[clusters["validates"], "cluster"]).to_numpy()


def _cluster_tags(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each `cluster` and the code of its `tag`, -1 for none."""
    prompts = rows[["cluster", "prompt"]].assign(tag=rows["tag"].cat.codes).drop_duplicates()
    prompts["is_other"] = prompts["prompt"] != prompts["cluster"]
    ordered = prompts.sort_values(["cluster", "is_other", "prompt", "tag"])
    return ordered.drop_duplicates("cluster")[["cluster", "tag"]]


class Settled(NamedTuple):
    """Rows that are dropped, by reason."""

    repeats: Mask
    """They repeat a kept row exactly."""
    near_repeats: Mask
    """They repeat a kept row nearly."""
    refused: Mask
    """Their prompt keeps enough rows that it prefers."""


class DuplicateGroups(NamedTuple):
    """For each row the original that it repeats, directly or through others."""

    original: npt.NDArray[np.intp]
    """Row number, of the row itself if it repeats none."""
    is_near: Mask
    """True where the row repeats it only nearly."""


def settle(rows: pd.DataFrame, remaining: Mask, duplicates: DuplicateGroups, rows_per_prompt: int | None) -> Settled:
    """Return what `remaining` loses to duplicates and to the limit on rows of a prompt; None for no limit."""
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
    """Return the original of each row; raise InputError for one that is missing."""
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
