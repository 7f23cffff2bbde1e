"""Choices among the rows that pass the filters. None of them depends on the order of rows in files.

Quotas and the target are nested: a larger one keeps what a smaller one keeps. Every prompt gives one row before any
prompt gives a second; ties are broken by the hash of the row's id.
"""

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from stillhouse.config.dataset import SelectionConfig
from stillhouse.dataset.select.filters import FILTERS
from stillhouse.dataset.select.reasons import BITS, DropReason
from stillhouse.errors import ConfigError

Mask = npt.NDArray[np.bool_]
"""One flag for each of all rows."""
_FAULTS: Final = sum(BITS[one.reason] for one in FILTERS if one.reason not in (DropReason.WRONG, DropReason.SCORE_LOW))
"""Reasons that exclude a row from being the wrong one of a pair. Choices among rows (a quota, a duplicate) do not."""


def preference(rows: pd.DataFrame, selection: SelectionConfig) -> npt.NDArray[np.int32]:
    """Rank of each row in an order that keeps prompts together and puts the preferred row of each first.

    Within a prompt: right before unverified before wrong rows; then `selection.prefer`, unknown values last; then the
    sample index; then the id's hash.
    """
    by = {
        "first": rows["sample_index"],
        "shortest": rows["size"],
        "fewest_tool_calls": rows["num_tool_calls"],
        "score": -rows["score"],
    }[selection.prefer]
    correctness = np.select([rows["verified"] == 1, rows["verified"] == -1], [0, 1], 2)
    ranks = np.empty(len(rows), np.int32)
    ranks[np.lexsort((rows["id"], rows["sample_index"], by, correctness, rows["prompt"]))] = np.arange(len(rows))
    return ranks


def rank_in_prompt(rows: pd.DataFrame, remaining: Mask) -> "pd.Series[int]":
    """Rank of each row of `remaining` within its prompt, from 0, the preferred first; indexed by row."""
    return (
        rows.loc[remaining, ["prompt", "preference"]].sort_values("preference").groupby("prompt", sort=False).cumcount()
    )


def spread(rows: pd.DataFrame, remaining: Mask) -> npt.NDArray[np.intp]:
    """The rows of `remaining` by rank in their prompt, then by the id's hash."""
    ranks = rank_in_prompt(rows, remaining)
    return ranks.index.to_numpy()[np.lexsort((rows["id"][ranks.index], ranks))]


def pass_rates(rows: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Pass rate of each row's prompt: right rows over verified ones, NaN where none is verified.

    All candidates count, whatever else drops them.
    """
    counted = rows["verified"].where((rows["verified"] >= 0) & ~rows["is_repeated"])
    return counted.groupby(rows["prompt"]).transform("mean").to_numpy()


def outside_band(rates: npt.NDArray[np.float64], selection: SelectionConfig) -> Mask:
    """Rows whose pass rate is below `min_pass_rate` or above `max_pass_rate`; the limits themselves are allowed."""
    low = 0.0 if selection.min_pass_rate is None else selection.min_pass_rate
    high = 1.0 if selection.max_pass_rate is None else selection.max_pass_rate
    return (rates < low) | (rates > high)


def over_quota(rows: pd.DataFrame, remaining: Mask, quotas: Mapping[str, int]) -> Mask:
    """Rows of `remaining` beyond the quota of their tag; tags without a quota keep all."""
    dropped = np.zeros(len(rows), bool)
    for tag, quota in quotas.items():
        dropped[spread(rows, remaining & (rows["tag"] == tag).to_numpy())[quota:]] = True
    return dropped


def check_quotas(quotas: Mapping[str, int], tags: Collection[str]) -> None:
    """Validates that some row has each tag that a quota names.

    Raises:
        ConfigError: no row has it.
    """
    if unknown := sorted(set(quotas) - set(tags)):
        raise ConfigError(
            f"dataset.selection.quotas names {', '.join(map(repr, unknown))}, which no trajectory is tagged; seen: "
            f"{', '.join(map(repr, sorted(tags))) or 'no tags'}. Correct the tag or take it out"
        )


def over_target(rows: pd.DataFrame, remaining: Mask, target: int | None) -> Mask:
    """Rows of `remaining` beyond the `target`; None keeps all."""
    dropped = np.zeros(len(rows), bool)
    if target is not None:
        dropped[spread(rows, remaining)[target:]] = True
    return dropped


def in_validation(rows: pd.DataFrame, kept: Mask, fraction: float) -> Mask:
    """Rows of `kept` in the validation split: whole clusters of near-duplicate prompts, of every tag.

    A cluster validates if its draw, a hash of its name and `split_seed` alone, is below `fraction`. A tag that has
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
    """Each `cluster` and the code of its `tag`, -1 for none."""
    prompts = rows[["cluster", "prompt"]].assign(tag=rows["tag"].cat.codes).drop_duplicates()
    prompts["is_other"] = prompts["prompt"] != prompts["cluster"]
    ordered = prompts.sort_values(["cluster", "is_other", "prompt", "tag"])
    return ordered.drop_duplicates("cluster")[["cluster", "tag"]]


def preference_pairs(rows: pd.DataFrame, kept: Mask, reasons: npt.NDArray[np.uint64]) -> list[tuple[int, int]]:
    """A right and a wrong row of one prompt each, by row number, in the order of the right ones.

    The right row is the prompt's preferred kept one. The wrong one is finished and sound: its only drop reasons are
    that it is wrong or scores low; of several, the preferred one. A prompt gives at most one pair.
    """
    is_sound = (reasons & np.uint64(_FAULTS)) == 0
    right = _preferred(rows, kept & (rows["verified"] == 1).to_numpy())
    wrong = _preferred(rows, is_sound & (rows["verified"] == 0).to_numpy() & ~rows["is_repeated"].to_numpy())
    pairs = right.merge(wrong, on="prompt", suffixes=("_right", "_wrong")).sort_values("row_right")
    return list(zip(pairs["row_right"].tolist(), pairs["row_wrong"].tolist(), strict=True))


def _preferred(rows: pd.DataFrame, remaining: Mask) -> pd.DataFrame:
    ordered = rows.loc[remaining, ["prompt", "preference"]].sort_values("preference").drop_duplicates("prompt")
    return ordered["prompt"].rename_axis("row").reset_index()
