"""Columns of a dataset's Parquet files, and the files of a shard on its way to one.

Conversations, schemas and metadata are columns of JSON text under Arrow's `arrow.json` extension type. A struct column
would merge the keys of all rows and give every message and tool the keys of every other, filled with null. With the
features in the file's own metadata, `datasets.load_dataset` returns the JSON objects exactly as they were.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from stillhouse.labels import LABELS
from stillhouse.labels.declare import Column, Kind, Kinds, Measure

TRAJECTORY_COLUMNS: Final = (
    Column("id", Kind.TEXT, "the rollout's key: hash of prompt, sample index, model, sampling, system prompt, tools"),
    Column("prompt_id", Kind.TEXT, "hash of the prompt's messages and tools; rows of one prompt are in one split"),
    Column("sample_index", Kind.WHOLE, "which of the prompt's trajectories this is, from 0"),
    Column("messages", Kind.JSONS, "OpenAI form; arguments of tool calls are objects where they are JSON objects"),
    Column("tools", Kind.JSONS, "full schemas of the tools offered"),
    Column("arguments", Kind.TEXTS, "arguments of all tool calls in order, as the model wrote them"),
    Column("metadata", Kind.JSON, "what came with the prompt besides the columns below"),
    Column("expected_answer", Kind.TEXT, "what the answer was compared with; null where there is nothing to compare"),
    Column("tag", Kind.TEXT, "the prompt's group", Kinds("Tags", missing="(no tag)")),
    Column("teacher", Kind.TEXT, "the model asked for", Kinds("Teachers")),
    Column("sampling", Kind.TEXT, "hash of teacher, sampling and tools; null for trajectories sampled elsewhere"),
    Column("providers", Kind.TEXTS, "who answered, where a router said so", Kinds("Providers")),
    Column("request_ids", Kind.TEXTS, "the provider's names of the requests, where it gave some"),
    Column("turns", Kind.WHOLE, "completions sampled", Measure("Turns", "count")),
    Column("num_tool_calls", Kind.WHOLE, "tool calls asked for", Measure("Tool calls", "count")),
    Column("tool_names", Kind.TEXTS, "names of the tools called, in order; null for a call without one",
           Kinds("Tool calls", missing="(no name)")),
    Column("num_tool_errors", Kind.WHOLE, "tool calls that failed",
           Measure("Failed tool calls", "count", is_drawn=False)),
    Column("stop_reason", Kind.TEXT, "why the trajectory ended; `answered` is the regular end", Kinds("Stop reasons")),
    Column("prompt_tokens", Kind.WHOLE, "prompt tokens billed over all turns; null if a turn did not report them"),
    Column("completion_tokens", Kind.WHOLE, "tokens sampled over all turns; null likewise",
           Measure("Sampled tokens", "count")),
    Column("reasoning_tokens", Kind.WHOLE, "those of them spent on reasoning; null likewise",
           Measure("Reasoning tokens", "count", is_drawn=False)),
    Column("cached_tokens", Kind.WHOLE, "prompt tokens the provider had cached; null likewise"),
    Column("cost_usd", Kind.REAL, "price in USD; null if the price of a turn is unknown", Measure("Cost", "usd")),
    Column("latency_s", Kind.REAL, "seconds spent waiting for completions; null if that of a turn is unknown",
           Measure("Latency", "seconds")),
    Column("error", Kind.JSON, "what failed: kind, message and, where there was one, HTTP status; null if nothing did"),
)  # fmt: skip

LABEL_COLUMNS: Final = tuple(column for label in LABELS if label.file == "candidates" for column in label.columns)
"""Measured from one trajectory."""

JUDGE_COLUMNS: Final = (
    Column("judge", Kind.JSON, "scores by criterion, verdict and explanation of the judge; null if it was not asked"),
)  # fmt: skip
DIFFICULTY_COLUMNS: Final = tuple(column for label in LABELS if label.file == "difficulty" for column in label.columns)

DUPLICATE_COLUMNS: Final = (
    Column("prompt_cluster", Kind.TEXT, "smallest prompt id among its near-duplicates; splits keep clusters whole"),
    Column("duplicate_of", Kind.TEXT, "id of the row this one repeats; null if it repeats none"),
    Column("duplicate_kind", Kind.TEXT, "`exact` after normalisation, or `near`"),
    Column("duplicate_similarity", Kind.REAL, "Jaccard similarity of shingles with that row"),
    Column("duplicate_source", Kind.TEXT, "the earlier dataset that holds that row; null if this one does"),
)  # fmt: skip

SELECTION_COLUMNS: Final = (
    Column("pass_rate", Kind.REAL, "share of right rows among the prompt's verified ones; null without any",
           Measure("Pass rate of the prompt")),
    Column("kept", Kind.FLAG, "whether the row is trained on or validated with"),
    Column("drop_reasons", Kind.TEXTS, "every reason why the row is not kept; empty for kept rows"),
    Column("split", Kind.TEXT, "`train` or `validation`; null for rows that are not kept"),
)  # fmt: skip

CANDIDATE_COLUMNS: Final = TRAJECTORY_COLUMNS + LABEL_COLUMNS
"""Columns of a shard of labelled trajectories."""

COLUMNS: Final = (
    TRAJECTORY_COLUMNS + LABEL_COLUMNS + JUDGE_COLUMNS + DIFFICULTY_COLUMNS + DUPLICATE_COLUMNS + SELECTION_COLUMNS
)

JSON_COLUMNS: Final = frozenset(column.name for column in COLUMNS if column.kind is Kind.JSON)
JSON_LIST_COLUMNS: Final = frozenset(column.name for column in COLUMNS if column.kind is Kind.JSONS)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of `columns`, which carries their features for `datasets` (4.7 or later)."""
    features = {column.name: column.kind.feature for column in columns}
    return pa.schema(
        [pa.field(column.name, column.kind.arrow_type) for column in columns],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )


KEPT_FILES: Final = ("train.parquet", "validation.parquet")
DATASET_FILES: Final = (*KEPT_FILES, "rejected.parquet")
CANDIDATES_FILE: Final = "candidates.parquet"
SIGNATURES_FILE: Final = "signatures.parquet"
JUDGE_FILE: Final = "judge.parquet"
DIFFICULTY_FILE: Final = "difficulty.parquet"
RECORDED_FILE: Final = "top_logprobs.parquet"


@dataclass(frozen=True, slots=True)
class CandidateShard:
    """The files of one shard. Row `i` of each is the same trajectory; None: not measured."""

    candidates: Path
    signatures: Path
    """Columns `duplicates.signatures.SIGNATURE_SCHEMA`."""
    judge: Path | None = None
    difficulty: Path | None = None
    duplicates: Path | None = None

    @property
    def recorded(self) -> Path | None:
        """Return the file that `dataset.recorded` wrote beside the candidates; None where nothing was recorded."""
        path = self.candidates.with_name(RECORDED_FILE)
        return path if path.is_file() else None
