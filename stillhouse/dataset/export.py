"""Trajectories as one Parquet file in the dataset's schema, before any selection."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from stillhouse.dataset.labels import label
from stillhouse.dataset.rows import RowWriter, row_of
from stillhouse.store.atomic import sync_folder, unwritable
from stillhouse.types import PromptMetadata, Trajectory


def write_trajectories_parquet(
    path: Path, trajectories: Iterable[Trajectory], metadata: Mapping[str, PromptMetadata]
) -> int:
    """Replaces `path` by a file with one row for each trajectory, failed ones included; the number of rows.

    Rows are verified; nothing is rendered, and `kept`, `drop_reasons` and `split` are null.

    Raises:
        StoreError: no space or no permission.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        work = Path(name)
        try:
            with RowWriter(work) as writer:
                for trajectory in trajectories:
                    about = metadata.get(trajectory.prompt_id)
                    writer.write(row_of(trajectory, about, label(trajectory, about), drop_reasons=None, split=None))
            with work.open("rb") as file:
                os.fsync(file.fileno())
            work.replace(path)
        except BaseException:
            work.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    return writer.num_rows
