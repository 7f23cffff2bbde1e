"""The funnel: how many rows and tokens each step of the selection leaves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Step(NamedTuple):
    """What is left after one step."""

    name: str
    num_rows: int
    student_tokens: int
    """Rows that were not rendered count for none."""
    completion_tokens: int
    """Tokens sampled from the teacher; rows whose number is unknown count for none."""


class FunnelCounts:
    """Counts rows by the first step that drops them, and by every reason they have.

    Args:
        steps: Names of the steps in order, each with the reasons it drops rows for.
    """

    def __init__(self, steps: Sequence[tuple[str, Sequence[str]]]) -> None:
        self._names = [name for name, _ in steps]
        self._reasons = [str(reason) for _, reasons in steps for reason in reasons]
        self._step_of_reason = np.array([place for place, (_, reasons) in enumerate(steps) for _ in reasons], dtype=int)
        self._reason_counts = np.zeros(len(self._reasons), dtype=np.int64)
        # The last place is that of rows no step drops.
        self._dropped = np.zeros((3, len(steps) + 1))

    def add(self, batch: pa.RecordBatch) -> None:
        """Counts rows by `drop_reasons`.

        Raises:
            InputError: a reason that no step has.
        """
        reasons = batch.column("drop_reasons")
        codes = self._codes(reasons)
        self._reason_counts += np.bincount(codes, minlength=len(self._reasons))
        first = np.full(len(batch), len(self._names))
        np.minimum.at(first, pc.list_parent_indices(reasons).to_numpy(), self._step_of_reason[codes])
        for row, weights in enumerate((None, _tokens(batch, "num_tokens"), _tokens(batch, "completion_tokens"))):
            self._dropped[row] += np.bincount(first, weights=weights, minlength=len(self._names) + 1)

    def _codes(self, reasons: pa.Array) -> "NDArray[np.int64]":
        named = reasons.flatten()
        codes = pc.index_in(named, value_set=pa.array(self._reasons, pa.string()))
        if codes.null_count:
            unknown = named.filter(codes.is_null())[0].as_py()
            raise InputError(
                f"drop_reasons holds {unknown!r}; expected one of {', '.join(self._reasons)}. Another version of "
                "Stillhouse wrote this dataset: build it again"
            )
        return codes.to_numpy().astype(np.int64)

    def steps(self) -> list[Step]:
        """What is left before the first step, after each, and in the end."""
        start = self._dropped.sum(axis=1)
        left = start[:, None] - np.cumsum(self._dropped[:, :-1], axis=1)
        after = [Step(name, *map(int, left[:, place])) for place, name in enumerate(self._names)]
        return [Step("distinct", *map(int, start)), *after, Step("kept", *map(int, self._dropped[:, -1]))]

    def reasons(self) -> dict[str, int]:
        """Rows by reason, in the order of the steps; a row counts for each of its reasons."""
        return {name: int(count) for name, count in zip(self._reasons, self._reason_counts, strict=True) if count}


def _tokens(batch: pa.RecordBatch, name: str) -> "NDArray[np.float64]":
    return batch.column(name).fill_null(0).to_numpy().astype(np.float64)
