"""Columns of a dataset's Parquet files.

Conversations, schemas and metadata are columns of JSON text under Arrow's `arrow.json` extension type. A struct column
would merge the keys of all rows and hand every message and every tool the keys of every other, filled with null. With
the features in the file's own metadata, `datasets.load_dataset` gives the JSON objects back exactly as they were.
"""

import json
from enum import Enum
from typing import Final, NamedTuple

import pyarrow as pa


class Kind(Enum):
    """Type of a column: its Arrow type, and its feature in the terms of the package `datasets`."""

    TEXT = ("string",)
    WHOLE = ("int64",)
    REAL = ("float64",)
    FLAG = ("bool",)
    TEXTS = ("string", "list")
    JSON = ("json",)
    JSONS = ("json", "list")

    @property
    def arrow_type(self) -> pa.DataType:
        """The type in the file."""
        item = _ARROW_TYPES[self.value[0]]
        return pa.list_(item) if len(self.value) > 1 else item

    @property
    def feature(self) -> dict[str, object]:
        """The feature as `datasets.Features.to_dict` writes it."""
        name = self.value[0]
        item: dict[str, object] = {"_type": "Json"} if name == "json" else {"dtype": name, "_type": "Value"}
        return {"feature": item, "_type": "List"} if len(self.value) > 1 else item


_ARROW_TYPES: Final = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "json": pa.json_(pa.string()),
}


class Column(NamedTuple):
    """A column and what it means."""

    name: str
    kind: Kind
    meaning: str


COLUMNS: Final = (
    Column("id", Kind.TEXT, "the rollout's key: hash of prompt, sample index, model, sampling, system prompt, tools"),
    Column("prompt_id", Kind.TEXT, "hash of the prompt's messages and tools; rows of one prompt are in one split"),
    Column("sample_index", Kind.WHOLE, "which of the prompt's trajectories this is, from 0"),
    Column("messages", Kind.JSONS, "OpenAI form; arguments of tool calls are JSON text as the model wrote it"),
    Column("tools", Kind.JSONS, "full schemas of the tools offered"),
    Column("metadata", Kind.JSON, "what came with the prompt besides the columns below"),
    Column("expected_answer", Kind.TEXT, "what the answer was compared with; null leaves the row unverified"),
    Column("tag", Kind.TEXT, "the prompt's group"),
    Column("teacher", Kind.TEXT, "the model asked for"),
    Column("providers", Kind.TEXTS, "who answered, where a router said so"),
    Column("turns", Kind.WHOLE, "completions sampled"),
    Column("num_tool_calls", Kind.WHOLE, "tool calls asked for"),
    Column("num_tool_errors", Kind.WHOLE, "tool calls that failed"),
    Column("stop_reason", Kind.TEXT, "why the trajectory ended; `answered` is the regular end"),
    Column("prompt_tokens", Kind.WHOLE, "prompt tokens billed over all turns; null if a turn did not report them"),
    Column("completion_tokens", Kind.WHOLE, "tokens sampled over all turns; null likewise"),
    Column("reasoning_tokens", Kind.WHOLE, "those of them spent on reasoning; null likewise"),
    Column("cached_tokens", Kind.WHOLE, "prompt tokens the provider had cached; null likewise"),
    Column("cost_usd", Kind.REAL, "price in USD; null if the price of a turn is unknown"),
    Column("latency_s", Kind.REAL, "seconds spent waiting for completions"),
    Column("verified", Kind.FLAG, "true: right; false: wrong; null: unverified"),
    Column("kept", Kind.FLAG, "whether the row is trained on or validated with; null before selection"),
    Column("drop_reasons", Kind.TEXTS, "every reason why the row is not kept; empty for kept rows"),
    Column("split", Kind.TEXT, "`train` or `validation`; null for rows that are not kept"),
    Column("num_tokens", Kind.WHOLE, "length under the student's chat template; null if not rendered"),
    Column("num_supervised_tokens", Kind.WHOLE, "tokens of it that are trained on; null if not rendered"),
    Column("error", Kind.JSON, "what failed: kind, message and, where there was one, HTTP status; null if nothing did"),
)  # fmt: skip

JSON_COLUMNS: Final = frozenset(column.name for column in COLUMNS if column.kind is Kind.JSON)
JSON_LIST_COLUMNS: Final = frozenset(column.name for column in COLUMNS if column.kind is Kind.JSONS)


def dataset_schema() -> pa.Schema:
    """The Arrow schema of `COLUMNS`, which carries their features for `datasets` (4.7 or later)."""
    features = {column.name: column.kind.feature for column in COLUMNS}
    return pa.schema(
        [pa.field(column.name, column.kind.arrow_type) for column in COLUMNS],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
