"""The band of pass rates: prompts that the teacher solves neither always nor never teach most.

A prompt's pass rate is the share of right rows among its verified ones. All candidates count, whatever else drops them;
prompts without a verified row have none and stay.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd

from stillhouse.config.dataset import SelectionConfig
from stillhouse.dataset.select.order import Mask


def pass_rates(rows: pd.DataFrame) -> npt.NDArray[np.float64]:
    """The pass rate of each row's prompt; NaN for prompts without a verified row."""
    counted = rows["verified"].where((rows["verified"] >= 0) & ~rows["is_repeated"])
    return counted.groupby(rows["prompt"]).transform("mean").to_numpy()


def outside_band(rates: npt.NDArray[np.float64], selection: SelectionConfig) -> Mask:
    """Rows whose rate is below `min_pass_rate` or above `max_pass_rate`; the limits themselves are within."""
    least = 0.0 if selection.min_pass_rate is None else selection.min_pass_rate
    most = 1.0 if selection.max_pass_rate is None else selection.max_pass_rate
    return (rates < least) | (rates > most)
