"""The kept rows of a dataset as one file, for trainers that want one: chat JSON lines, or Parquet."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.read import SplitName, read_rows
from stillhouse.errors import ConfigError
from stillhouse.store.atomic import replaced_atomically
from stillhouse.types import JsonObject

KEPT: Final[tuple[SplitName, ...]] = ("train", "validation")


def export_rows(folder: Path, output: Path) -> int:
    """Replaces `output` by the kept rows of a dataset, both splits; the number of rows.

    A `.jsonl` line is `{"messages", "tools", "metadata"}` in the OpenAI form with full tool schemas; the prompt's own
    metadata is kept beside the teacher's facts. A `.parquet` file has the dataset's own columns.

    Raises:
        ConfigError: `output` ends otherwise.
        InputError: `folder` is no dataset.
        StoreError: no space or no permission.
    """
    if output.suffix == ".jsonl":
        with replaced_atomically(output) as work, work.open("wb") as file:
            num_rows = 0
            for row in chain.from_iterable(read_rows(folder, split) for split in KEPT):
                file.write(orjson.dumps(_chat_line(row), option=orjson.OPT_APPEND_NEWLINE))
                num_rows += 1
        return num_rows
    if output.suffix == ".parquet":
        sources = [folder / f"{split}.parquet" for split in KEPT]
        with replaced_atomically(output) as work, pq.ParquetWriter(work, pq.read_schema(sources[0])) as writer:
            for batch in _batches(sources):
                writer.write_batch(batch)
        return pq.read_metadata(output).num_rows
    raise ConfigError(f"{output}: expected a name ending in .jsonl or .parquet")


def _chat_line(row: JsonObject) -> JsonObject:
    facts = {"teacher": row["teacher"], "turns": row["turns"], "prompt_id": row["prompt_id"]}
    known = {name: row[name] for name in ("expected_answer", "tag", "verified") if row[name] is not None}
    # The teacher's facts come last: a prompt's own key of the same name must not pass for them.
    return {"messages": row["messages"], "tools": row["tools"], "metadata": {**row["metadata"], **known, **facts}}


def _batches(sources: list[Path]) -> Iterator[pa.RecordBatch]:
    for source in sources:
        with pq.ParquetFile(source) as file:
            yield from file.iter_batches()
