"""The vectors of a shard's rows, as a file beside its candidates."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.chat.content import text_of
from stillhouse.dataset.totals import sampled_part
from stillhouse.errors import EndpointError
from stillhouse.types import Trajectory

if TYPE_CHECKING:
    from stillhouse.dataset.embeddings.embed import Vector


def prompt_text(trajectory: Trajectory) -> str | None:
    """What the user said before the first sampled message; None where that is no text.

    The system prompt is left out: where all rows share it, it makes them alike.
    """
    given = trajectory.messages[: len(trajectory.messages) - len(sampled_part(trajectory))]
    text = "\n".join(filter(None, (text_of(message) for message in given if message["role"] == "user")))
    return text if text and not text.isspace() else None


def write_embeddings(path: Path, texts: Sequence[str | None], vectors: Mapping[str, "Vector"]) -> int:
    """Writes the column `embedding`, a list of float32; the number of rows.

    All lists have one size, but the type is that of lists of any size: Parquet files of the fixed-size type cannot be
    read back by Arrow once a row is null (pyarrow 25: "Expected all lists to be of size").

    Args:
        path: the file.
        texts: of each row, in the shard's order; None makes null.
        vectors: of every text.

    Raises:
        EndpointError: the vectors differ in size.
    """
    sizes = sorted({len(vector) for vector in vectors.values()})
    if len(sizes) > 1:
        raise EndpointError(
            f"the embeddings have {' and '.join(map(str, sizes))} dimensions, expected one number: the model behind "
            "the endpoint has changed. Give dataset.embeddings.model the name of one model"
        )
    rows = [None if text is None else vectors[text] for text in texts]
    column = pa.array(rows, type=pa.list_(pa.float32()))
    pq.write_table(pa.table({"embedding": column}), path, compression="zstd")
    return len(rows)
