"""The target: exactly so many rows, if so many are left, spread over prompts.

Every prompt gives one row before any gives a second; among these the hash of the row's id decides. A higher target
keeps what a lower one does.
"""

import numpy as np
import pandas as pd

from stillhouse.dataset.select.order import Mask, spread


def surplus(rows: pd.DataFrame, alive: Mask, target: int | None) -> Mask:
    """Rows of `alive` that the target does not need; None needs all."""
    dropped = np.zeros(len(rows), bool)
    if target is not None:
        dropped[spread(rows, alive)[target:]] = True
    return dropped
