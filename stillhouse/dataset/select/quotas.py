"""Quotas: at most so many rows of a tag, spread over its prompts.

Every prompt of the tag gives one row before any gives a second; among these the hash of the row's id decides. A larger
quota keeps what a smaller one does.
"""

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd

from stillhouse.dataset.select.order import Mask, spread
from stillhouse.errors import ConfigError


def over_quota(rows: pd.DataFrame, alive: Mask, quotas: Mapping[str, int]) -> Mask:
    """Rows of `alive` beyond the quota of their tag; tags without a quota keep all."""
    dropped = np.zeros(len(rows), bool)
    for tag, most in quotas.items():
        dropped[spread(rows, alive & (rows["tag"] == tag).to_numpy())[most:]] = True
    return dropped


def check_quotas(quotas: Mapping[str, int], tags: Collection[str]) -> None:
    """Raises ConfigError: a quota is for a tag that no row has, which would bound nothing."""
    if unknown := sorted(set(quotas) - set(tags)):
        raise ConfigError(
            f"dataset.selection.quotas names {', '.join(map(repr, unknown))}, which no trajectory is tagged; seen: "
            f"{', '.join(map(repr, sorted(tags))) or 'no tags'}. Correct the tag or take it out"
        )
