"""Measures of rows and their distributions among kept and dropped rows."""

from collections import defaultdict
from typing import Final, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from stillhouse.dataset.report.columns import Distribution, numbers
from stillhouse.report.conversation import cut

Unit = Literal["count", "usd", "seconds", "number"]


class Measure(NamedTuple):
    """A numeric column and how it is shown."""

    column: str
    label: str
    unit: Unit
    is_drawn: bool = True
    """Whether it is plotted; measures similar to others are in the table only."""


MEASURES: Final = (
    Measure("num_tokens", "Student tokens", "count"),
    Measure("num_supervised_tokens", "Supervised tokens", "count", is_drawn=False),
    Measure("completion_tokens", "Sampled tokens", "count"),
    Measure("reasoning_tokens", "Reasoning tokens", "count", is_drawn=False),
    Measure("prompt_chars", "Prompt characters", "count", is_drawn=False),
    Measure("answer_chars", "Answer characters", "count"),
    Measure("sampled_chars", "Sampled characters", "count", is_drawn=False),
    Measure("turns", "Turns", "count"),
    Measure("num_tool_calls", "Tool calls", "count"),
    Measure("num_tool_errors", "Failed tool calls", "count", is_drawn=False),
    Measure("cost_usd", "Cost", "usd"),
    Measure("latency_s", "Latency", "seconds"),
    Measure("pass_rate", "Pass rate of the prompt", "number"),
    Measure("repetition", "Repeated n-grams", "number"),
    Measure("compression_ratio", "Compression ratio", "number", is_drawn=False),
    Measure("student_nll", "Student's surprise in nats", "number"),
    Measure("student_pass_rate", "Student's pass rate", "number"),
)


class KeptAndDropped(NamedTuple):
    """Distributions of one measure among kept and among dropped rows."""

    kept: Distribution
    dropped: Distribution

    def of(self, kept: bool) -> Distribution:
        """The distribution of kept or of dropped rows."""
        return self.kept if kept else self.dropped

    @property
    def num_values(self) -> int:
        """Number of rows with the measure."""
        return self.kept.num_values + self.dropped.num_values


class Measurements:
    """Distributions of `MEASURES` and of scores by name."""

    def __init__(self) -> None:
        self._columns: defaultdict[str, KeptAndDropped] = defaultdict(_parts)
        self._scores: defaultdict[str, KeptAndDropped] = defaultdict(_parts)

    def add(self, batch: pa.RecordBatch, kept: bool) -> None:
        """Counts the rows of `batch`, which are all kept or all dropped."""
        for measure in MEASURES:
            self._columns[measure.column].of(kept).add(numbers(batch.column(measure.column)))
        for column, prefix in (("scores", ""), ("judge", "judge/")):
            self._add_scores(batch.column(column), prefix, kept)

    def _add_scores(self, column: pa.Array, prefix: str, kept: bool) -> None:
        values_of: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        # Equal texts are parsed once: distinct scores are often few.
        for entry in column.drop_null().value_counts().to_pylist():
            value = orjson.loads(entry["values"])
            scores = value.get("scores") if prefix else value
            for name, score in (scores or {}).items():
                if isinstance(score, int | float):
                    values_of[prefix + name].append((float(score), entry["counts"]))
        for name, pairs in values_of.items():
            values, times = zip(*pairs, strict=True)
            self._scores[name].of(kept).add(np.array(values), np.array(times, dtype=np.int64))

    def total(self, column: str) -> int | None:
        """Sum of an integer column over the kept rows; None if no row has a value."""
        parts = self._columns[column]
        return round(parts.kept.sum) if parts.num_values else None

    def present(self) -> list[tuple[Measure, KeptAndDropped]]:
        """Measures with values in the order of `MEASURES`, then scores by name."""
        columns = ((measure, self._columns[measure.column]) for measure in MEASURES)
        scores = ((Measure(name, cut(name, 60), "number"), self._scores[name]) for name in sorted(self._scores))
        return [(measure, parts) for measure, parts in (*columns, *scores) if parts.num_values]


def _parts() -> KeptAndDropped:
    return KeptAndDropped(Distribution(), Distribution())
