"""How hard a shard's rows are, as a file beside its candidates."""

from collections.abc import Iterable
from pathlib import Path

from stillhouse.dataset.rows import TableWriter
from stillhouse.dataset.schema import DIFFICULTY_COLUMNS


def write_difficulty(path: Path, rows: Iterable[tuple[float | None, float | None]]) -> int:
    """Writes `schema.DIFFICULTY_COLUMNS`; the number of rows.

    Args:
        path: the file.
        rows: the student's mean negative log-likelihood and its pass rate, for each of a shard's trajectories in order.
    """
    with TableWriter(path, DIFFICULTY_COLUMNS) as table:
        for nll, pass_rate in rows:
            table.write({"student_nll": nll, "student_pass_rate": pass_rate})
    return table.num_rows
