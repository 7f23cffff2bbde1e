"""Columns of a dataset's Parquet files, and the files of a shard on its way to one.

Conversations, schemas and metadata are columns of JSON text under Arrow's `arrow.json` extension type. A struct column
would merge the keys of all rows and give every message and tool the keys of every other, filled with null. With the
features in the file's own metadata, `datasets.load_dataset` returns the JSON objects exactly as they were.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa


class Kind(Enum):
    """Type of a column, in Arrow and in the package `datasets`."""

    TEXT = ("string",)
    WHOLE = ("int64",)
    REAL = ("float64",)
    FLAG = ("bool",)
    TEXTS = ("string", "list")
    JSON = ("json",)
    JSONS = ("json", "list")

    @property
    def is_list(self) -> bool:
        return len(self.value) > 1

    @property
    def arrow_type(self) -> pa.DataType:
        item = pa.json_(pa.string()) if self.value[0] == "json" else pa.type_for_alias(self.value[0])
        return pa.list_(item) if self.is_list else item

    @property
    def storage_type(self) -> pa.DataType:
        """The type without Arrow's JSON extension, in which rows are assembled."""
        item = pa.type_for_alias("string" if self.value[0] == "json" else self.value[0])
        return pa.list_(item) if self.is_list else item

    @property
    def feature(self) -> dict[str, object]:
        """The feature as `datasets.Features.to_dict` writes it."""
        name = self.value[0]
        item: dict[str, object] = {"_type": "Json"} if name == "json" else {"dtype": name, "_type": "Value"}
        return {"feature": item, "_type": "List"} if self.is_list else item


class Column(NamedTuple):
    name: str
    kind: Kind
    meaning: str


TRAJECTORY_COLUMNS: Final = (
    Column("id", Kind.TEXT, "the rollout's key: hash of prompt, sample index, model, sampling, system prompt, tools"),
    Column("prompt_id", Kind.TEXT, "hash of the prompt's messages and tools; rows of one prompt are in one split"),
    Column("sample_index", Kind.WHOLE, "which of the prompt's trajectories this is, from 0"),
    Column("messages", Kind.JSONS, "OpenAI form; arguments of tool calls are objects where they are JSON objects"),
    Column("tools", Kind.JSONS, "full schemas of the tools offered"),
    Column("arguments", Kind.TEXTS, "arguments of all tool calls in order, as the model wrote them"),
    Column("metadata", Kind.JSON, "what came with the prompt besides the columns below"),
    Column("expected_answer", Kind.TEXT, "what the answer was compared with; null where there is nothing to compare"),
    Column("tag", Kind.TEXT, "the prompt's group"),
    Column("teacher", Kind.TEXT, "the model asked for"),
    Column("sampling", Kind.TEXT, "hash of teacher, sampling and tools; null for trajectories sampled elsewhere"),
    Column("providers", Kind.TEXTS, "who answered, where a router said so"),
    Column("request_ids", Kind.TEXTS, "the provider's names of the requests, where it gave some"),
    Column("turns", Kind.WHOLE, "completions sampled"),
    Column("num_tool_calls", Kind.WHOLE, "tool calls asked for"),
    Column("tool_names", Kind.TEXTS, "names of the tools called, in order; null for a call without one"),
    Column("num_tool_errors", Kind.WHOLE, "tool calls that failed"),
    Column("stop_reason", Kind.TEXT, "why the trajectory ended; `answered` is the regular end"),
    Column("prompt_tokens", Kind.WHOLE, "prompt tokens billed over all turns; null if a turn did not report them"),
    Column("completion_tokens", Kind.WHOLE, "tokens sampled over all turns; null likewise"),
    Column("reasoning_tokens", Kind.WHOLE, "those of them spent on reasoning; null likewise"),
    Column("cached_tokens", Kind.WHOLE, "prompt tokens the provider had cached; null likewise"),
    Column("cost_usd", Kind.REAL, "price in USD; null if the price of a turn is unknown"),
    Column("latency_s", Kind.REAL, "seconds spent waiting for completions; null if that of a turn is unknown"),
    Column("error", Kind.JSON, "what failed: kind, message and, where there was one, HTTP status; null if nothing did"),
)  # fmt: skip
"""Facts of a trajectory and its prompt."""

LABEL_COLUMNS: Final = (
    Column("verifier", Kind.TEXT, "how the answer was verified; null without metadata of the prompt"),
    Column("verified", Kind.FLAG, "true: right; false: wrong; null: unverified"),
    Column("compared", Kind.TEXT, "the text of the answer that was compared; the code's first line under `python`"),
    Column("verification", Kind.TEXT, "why the answer is wrong or unverified, where there is more to say than that"),
    Column("has_answer", Kind.FLAG, "whether the last message is the assistant's, calls no tool and holds text"),
    Column("prompt_chars", Kind.WHOLE, "characters of the prompt's messages"),
    Column("answer_chars", Kind.WHOLE, "characters of the final answer; null without one"),
    Column("sampled_chars", Kind.WHOLE, "characters the model wrote: answers, reasoning and tool calls"),
    Column("language", Kind.TEXT, "language of the answer as ISO 639-1 code; null if not identified"),
    Column("language_confidence", Kind.REAL, "probability of it; null likewise"),
    Column("refusal", Kind.TEXT, "the words with which the answer declines; null if it does not"),
    Column("repetition", Kind.REAL, "share of the sampled word n-grams that came before; null for text too short"),
    Column("compression_ratio", Kind.REAL, "gzip size of the sampled text over its size; null for text too short"),
    Column("format_problem", Kind.TEXT, "how the answer misses the format asked for; null if it does not"),
    Column("private_data", Kind.TEXTS, "kinds of personal data and secrets the model wrote; null if not looked for"),
    Column("scores", Kind.JSON, "scores by name: `reward`, `reward/NAME`, functions of `labels.file`; null if none"),
    Column("objections", Kind.TEXTS, "reasons against the row that functions of `labels.file` gave"),
    Column("contamination", Kind.JSONS, "overlaps with evaluation sets: set, row, part, ngram, text; null: not sought"),
    Column("num_tokens", Kind.WHOLE, "longest of its samples under the student's chat template; null if not rendered"),
    Column("num_supervised_tokens", Kind.WHOLE, "tokens of all its samples that are trained on; null if not rendered"),
    Column("template_problem", Kind.TEXT, "why the student's template refuses the row, or what it alters; else null"),
)  # fmt: skip
"""Measured from one trajectory."""

JUDGE_COLUMNS: Final = (
    Column("judge", Kind.JSON, "scores by criterion, verdict and explanation of the judge; null if it was not asked"),
)  # fmt: skip
"""Graded by a language model."""

DIFFICULTY_COLUMNS: Final = (
    Column("student_nll", Kind.REAL, "mean negative log-likelihood of supervised tokens under the student, in nats"),
    Column("student_pass_rate", Kind.REAL, "share of the student's own answers to the prompt that are right"),
)  # fmt: skip
"""Difficulty for the student."""

TEACHER_COLUMNS: Final = (
    Column("teacher_nll", Kind.REAL, "mean negative log-likelihood of the row under the teacher, in nats a token"),
)  # fmt: skip
"""What the teacher itself says of a row."""

DUPLICATE_COLUMNS: Final = (
    Column("prompt_cluster", Kind.TEXT, "smallest prompt id among its near-duplicates; splits keep clusters whole"),
    Column("duplicate_of", Kind.TEXT, "id of the row this one repeats; null if it repeats none"),
    Column("duplicate_kind", Kind.TEXT, "`exact` after normalisation, or `near`"),
    Column("duplicate_similarity", Kind.REAL, "Jaccard similarity of shingles with that row"),
    Column("duplicate_source", Kind.TEXT, "the earlier dataset that holds that row; null if this one does"),
)  # fmt: skip
"""Relations to other rows."""

SELECTION_COLUMNS: Final = (
    Column("pass_rate", Kind.REAL, "share of right rows among the prompt's verified ones; null without any"),
    Column("kept", Kind.FLAG, "whether the row is trained on or validated with"),
    Column("drop_reasons", Kind.TEXTS, "every reason why the row is not kept; empty for kept rows"),
    Column("split", Kind.TEXT, "`train` or `validation`; null for rows that are not kept"),
)  # fmt: skip
"""Derived from labels and config."""

CANDIDATE_COLUMNS: Final = TRAJECTORY_COLUMNS + LABEL_COLUMNS
"""Columns of a shard of labelled trajectories."""

COLUMNS: Final = (
    TRAJECTORY_COLUMNS
    + LABEL_COLUMNS
    + JUDGE_COLUMNS
    + DIFFICULTY_COLUMNS
    + TEACHER_COLUMNS
    + DUPLICATE_COLUMNS
    + SELECTION_COLUMNS
)
"""Columns of a dataset."""

PREFERENCE_COLUMNS: Final = (
    Column("prompt", Kind.JSONS, "messages before the first sampled one, equal for both"),
    Column("chosen", Kind.JSONS, "messages of the preferred trajectory from the first sampled one on"),
    Column("rejected", Kind.JSONS, "messages of the other likewise"),
    Column("tools", Kind.JSONS, "full schemas of the tools offered, equal for both"),
    Column("prompt_id", Kind.TEXT, "as in the other files"),
    Column("tag", Kind.TEXT, "the prompt's group"),
    Column("chosen_id", Kind.TEXT, "column `id` of the preferred row"),
    Column("rejected_id", Kind.TEXT, "column `id` of the other row"),
    Column("chosen_scores", Kind.JSON, "column `scores` of the preferred row"),
    Column("rejected_scores", Kind.JSON, "column `scores` of the other row"),
)
"""Columns of right/wrong pairs, in the form that preference trainers read."""

JSON_COLUMNS: Final = frozenset(column.name for column in COLUMNS + PREFERENCE_COLUMNS if column.kind is Kind.JSON)
JSON_LIST_COLUMNS: Final = frozenset(
    column.name for column in COLUMNS + PREFERENCE_COLUMNS if column.kind is Kind.JSONS
)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema of `columns`, which carries their features for `datasets` (4.7 or later)."""
    features = {column.name: column.kind.feature for column in columns}
    return pa.schema(
        [pa.field(column.name, column.kind.arrow_type) for column in columns],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )


CANDIDATES_FILE: Final = "candidates.parquet"
SIGNATURES_FILE: Final = "signatures.parquet"
JUDGE_FILE: Final = "judge.parquet"
DIFFICULTY_FILE: Final = "difficulty.parquet"
EMBEDDINGS_FILE: Final = "embeddings.parquet"
RECORDED_FILE: Final = "top_logprobs.parquet"


@dataclass(frozen=True, slots=True)
class CandidateShard:
    """The files of one shard. Row `i` of each is the same trajectory; None: not measured."""

    candidates: Path
    """Columns `schema.CANDIDATE_COLUMNS`."""
    signatures: Path
    """Columns `duplicates.signatures.SIGNATURE_SCHEMA`."""
    judge: Path | None = None
    """Columns `schema.JUDGE_COLUMNS`."""
    difficulty: Path | None = None
    """Columns `schema.DIFFICULTY_COLUMNS`."""
    teacher: Path | None = None
    """Columns `schema.TEACHER_COLUMNS`."""
    embeddings: Path | None = None
    """One column `embedding`: a list of float32, all of one length, null where the row has no prompt text."""
    duplicates: Path | None = None
    """Columns `schema.DUPLICATE_COLUMNS`."""

    @property
    def recorded(self) -> Path | None:
        """What `dataset.recorded` wrote beside the candidates; None where nothing was recorded."""
        path = self.candidates.with_name(RECORDED_FILE)
        return path if path.is_file() else None
