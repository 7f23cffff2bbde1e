"""Orders of rows that know nothing of their order in files: by preference within a prompt, and spread over prompts."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from stillhouse.config.dataset import SelectionConfig

Mask = npt.NDArray[np.bool_]
"""One flag for each of all rows."""


def preference(rows: pd.DataFrame, selection: SelectionConfig) -> npt.NDArray[np.int32]:
    """The rank of each row in an order that keeps prompts together, the preferred row of each first.

    Within a prompt right rows come before unverified ones, and those before wrong ones; then goes what
    `selection.prefer` says, what is not known last; then the sample index, then the id's hash.
    """
    by = {
        "first": rows["sample_index"],
        "shortest": rows["size"],
        "fewest_tool_calls": rows["num_tool_calls"],
        "score": -rows["score"],
    }[selection.prefer]
    standing = np.select([rows["verified"] == 1, rows["verified"] == -1], [0, 1], 2)
    ranks = np.empty(len(rows), np.int32)
    ranks[np.lexsort((rows["id"], rows["sample_index"], by, standing, rows["prompt"]))] = np.arange(len(rows))
    return ranks


def place_in_prompt(rows: pd.DataFrame, alive: Mask) -> "pd.Series[int]":
    """The place of each row of `alive` among those of its prompt, from 0, the preferred first; indexed by row."""
    return rows.loc[alive, ["prompt", "preference"]].sort_values("preference").groupby("prompt", sort=False).cumcount()


def spread(rows: pd.DataFrame, alive: Mask) -> npt.NDArray[np.intp]:
    """The rows of `alive`, all prompts' first ones before any prompt's second one; among these by the id's hash.

    A shorter beginning of it is a beginning of a longer one, so that asking for more rows adds and never swaps.
    """
    places = place_in_prompt(rows, alive)
    return places.index.to_numpy()[np.lexsort((rows["id"][places.index], places))]
