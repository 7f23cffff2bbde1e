"""Pairs of a right and a wrong trajectory of one prompt, to learn preferences from.

A prompt's right row is the kept one it prefers. Its wrong row is finished and sound: nothing speaks against it but that
the answer is wrong or scores low; of several, the one `selection.prefer` puts first. A prompt gives one pair or none.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from stillhouse.dataset.select.filters import FILTERS
from stillhouse.dataset.select.order import Mask
from stillhouse.dataset.select.reasons import BITS, DropReason

_FAULTS: Final = sum(BITS[one.reason] for one in FILTERS if one.reason not in (DropReason.WRONG, DropReason.SCORE_LOW))
"""What the filters may not say of a wrong row. Choices among rows (a quota, a duplicate) do not make it a worse one."""


def preference_pairs(rows: pd.DataFrame, kept: Mask, reasons: npt.NDArray[np.uint64]) -> list[tuple[int, int]]:
    """The rows of each pair, the right one first, by their places among all rows; in the order of the right ones."""
    is_sound = (reasons & np.uint64(_FAULTS)) == 0
    right = _preferred(rows, kept & (rows["verified"] == 1).to_numpy())
    wrong = _preferred(rows, is_sound & (rows["verified"] == 0).to_numpy() & ~rows["is_repeated"].to_numpy())
    pairs = right.merge(wrong, on="prompt", suffixes=("_right", "_wrong")).sort_values("row_right")
    return list(zip(pairs["row_right"].tolist(), pairs["row_wrong"].tolist(), strict=True))


def _preferred(rows: pd.DataFrame, alive: Mask) -> pd.DataFrame:
    ordered = rows.loc[alive, ["prompt", "preference"]].sort_values("preference").drop_duplicates("prompt")
    return ordered["prompt"].rename_axis("row").reset_index()
