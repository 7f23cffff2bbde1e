"""Which rows a step trains on: a function of seed and step, so that no iterator has to be restored after a crash."""

import numpy as np


def stream_rows(step: int, batch_size: int, num_rows: int, num_epochs: int, seed: int) -> list[int]:
    """Row numbers of `step` when epochs, each in an order of its own, follow each other without a seam.

    Every row comes exactly `num_epochs` times; only the very last batch may be smaller than `batch_size`.
    """
    first = step * batch_size
    last = min(first + batch_size, num_rows * num_epochs)
    epochs = range(first // num_rows, -(-last // num_rows))
    orders = {epoch: _order(num_rows, epoch, seed) for epoch in epochs}
    return [int(orders[place // num_rows][place % num_rows]) for place in range(first, last)]


def num_stream_steps(batch_size: int, num_rows: int, num_epochs: int) -> int:
    """Steps until `stream_rows` has given every row `num_epochs` times."""
    return -(-num_rows * num_epochs // batch_size)


def distinct_rows(step: int, batch_size: int, num_rows: int, seed: int) -> list[int]:
    """`batch_size` different row numbers for `step`; what an epoch has left over is skipped.

    `batch_size` is at most `num_rows`.
    """
    epoch, place = divmod(step, num_rows // batch_size)
    return [int(row) for row in _order(num_rows, epoch, seed)[place * batch_size : (place + 1) * batch_size]]


def _order(num_rows: int, epoch: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(num_rows)
