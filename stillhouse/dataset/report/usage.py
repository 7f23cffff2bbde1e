"""What the rows cost, in tokens and money. Unknown is not zero: a sum with an unknown part is unknown."""

import math
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.dataset.report.columns import numbers

USAGE_COLUMNS: Final = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens", "cost_usd")


class Total:
    """A sum over rows, and how many of them do not report their part."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self.num_unknown = 0

    def add(self, batch: pa.RecordBatch, column: str) -> None:
        """Adds a column. A row without a turn used nothing: its first request failed."""
        values = batch.column(column)
        self._sums.append(math.fsum(numbers(values)))
        self.num_unknown += pc.sum(pc.and_(values.is_null(), pc.greater(batch.column("turns"), 0))).as_py() or 0

    def __add__(self, other: "Total") -> "Total":
        both = Total()
        both._sums = [*self._sums, *other._sums]
        both.num_unknown = self.num_unknown + other.num_unknown
        return both

    @property
    def known(self) -> float:
        """The sum of what is reported: a lower bound."""
        return math.fsum(self._sums)

    @property
    def value(self) -> float | None:
        """The sum; None if a part of it is unknown."""
        return None if self.num_unknown else self.known


class Usage:
    """Totals of `USAGE_COLUMNS`."""

    def __init__(self, totals: Iterable[Total] = ()) -> None:
        self.totals = dict(zip(USAGE_COLUMNS, totals, strict=True)) if totals else {n: Total() for n in USAGE_COLUMNS}

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the rows of `batch`."""
        for name, total in self.totals.items():
            total.add(batch, name)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage([total + other.totals[name] for name, total in self.totals.items()])

    def __getitem__(self, name: str) -> float | None:
        """The total of a column; None if a part of it is unknown. Tokens are whole."""
        value = self.totals[name].value
        return value if value is None or name == "cost_usd" else round(value)
