"""Figures over the rows of a dataset, collected batch by batch in bounded memory."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array

from stillhouse.errors import InputError
from stillhouse.verification.intervals import ConfidenceInterval, Group, effective_sample_size, wilson_interval

CATEGORIES: Final = ("tag", "language", "teacher", "sampling", "stop_reason")
LISTS: Final = ("tool_names", "providers", "private_data")
FLAWS: Final = ("refusal", "format_problem", "template_problem")
"""Text columns that are null for rows without the flaw."""
USAGE_COLUMNS: Final = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens", "cost_usd")
_DIGITS: Final = 3
_HASH_KEY: Final = "stillhouse/rows."
"""16 bytes, as SipHash takes them."""


class Measure(NamedTuple):
    column: str
    label: str
    unit: Literal["count", "usd", "seconds", "number"]
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


def hashes(column: pa.Array) -> npt.NDArray[np.uint64]:
    """SipHash of each text, equal in every process."""
    texts = column.fill_null("").to_numpy(zero_copy_only=False)
    return np.asarray(hash_array(texts.astype(object), hash_key=_HASH_KEY, categorize=False), dtype=np.uint64)


def _numbers(column: pa.Array) -> npt.NDArray[np.float64]:
    return column.drop_null().cast(pa.float64()).to_numpy(zero_copy_only=False)


class Distribution:
    """Counts of finite values, rounded to three significant digits; others are ignored.

    That is finer than a plot or a table shows, whole numbers below 1000 stay exact, and bins can be chosen at the end.
    The idea is HdrHistogram's (Gil Tene): bins whose width grows with their value.
    """

    def __init__(self) -> None:
        self._counts: Counter[float] = Counter()
        self._sums: list[float] = []

    def add(self, values: npt.NDArray[np.float64], times: npt.NDArray[np.int64] | None = None) -> None:
        """Counts `values`, each once or `times` times."""
        finite = np.isfinite(values)
        known = values[finite]
        counts = np.ones(len(known), dtype=np.int64) if times is None else times[finite]
        self._sums.append(math.fsum(known * counts))
        distinct, places = np.unique(_rounded(known), return_inverse=True)
        totals = np.bincount(places, weights=counts, minlength=len(distinct)).astype(np.int64)
        self._counts.update(dict(zip(distinct.tolist(), totals.tolist(), strict=True)))

    @property
    def num_values(self) -> int:
        return self._counts.total()

    @property
    def sum(self) -> float:
        """Sum of the unrounded values."""
        return math.fsum(self._sums)

    @property
    def mean(self) -> float | None:
        """Mean of the unrounded values; None without any."""
        return self.sum / self.num_values if self._counts else None

    def quantile(self, share: float) -> float | None:
        """Smallest value that at least `share` of the values do not exceed; None without any."""
        needed, seen = share * self.num_values, 0
        for value, count in sorted(self._counts.items()):
            seen += count
            if seen >= needed:
                return value
        return None

    def values(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Distinct values in ascending order, and their counts."""
        values = sorted(self._counts)
        return np.array(values, np.float64), np.array([self._counts[value] for value in values], np.int64)


def _rounded(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    sizes = np.abs(values)
    exponents = np.floor(np.log10(sizes, out=np.zeros_like(sizes), where=sizes > 0))
    digits = np.clip(_DIGITS - 1 - exponents, -300, 300)
    # Positive powers only, since 10 ** -2 is no exact float: 0.7 must stay 0.7, and 12300 must stay 12300.
    up, down = 10.0 ** np.maximum(digits, 0), 10.0 ** np.maximum(-digits, 0)
    return np.round(values * up / down) * down / up


class Usage:
    """Sums of `USAGE_COLUMNS` over rows. A sum with an unknown part is unknown, not zero."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, list[float]] = defaultdict(list)
        self.num_unknown: Counter[str] = Counter()
        """Rows that report no value, by column."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows. Those without turns used nothing, since their first request failed."""
        has_turns = pc.greater(batch.column("turns"), 0)
        for name in USAGE_COLUMNS:
            values = batch.column(name)
            self._sums[name].append(math.fsum(_numbers(values)))
            self.num_unknown[name] += pc.sum(pc.and_(values.is_null(), has_turns)).as_py() or 0

    def __add__(self, other: "Usage") -> "Usage":
        both = Usage()
        both._sums.update({name: self._sums[name] + other._sums[name] for name in USAGE_COLUMNS})
        both.num_unknown = self.num_unknown + other.num_unknown
        return both

    def __getitem__(self, name: str) -> float | None:
        """Sum of a column; None if a row reports no value. Tokens are integers."""
        if self.num_unknown[name]:
            return None
        total = math.fsum(self._sums[name])
        return total if name == "cost_usd" else round(total)


class Figures:
    """Figures of the kept rows, or of the dropped ones."""

    def __init__(self) -> None:
        self.measures: defaultdict[str, Distribution] = defaultdict(Distribution)
        """By column of `MEASURES`."""
        self.scores: defaultdict[str, Distribution] = defaultdict(Distribution)
        self.counts: defaultdict[str, Counter[Any]] = defaultdict(Counter)
        """Rows by value in each column of `CATEGORIES` and `LISTS`, in which a row may count several times, and by True
        in those of `FLAWS`. Also `verdicts`, by verifier and verdict; `duplicates`, by kind and source; `overlaps`, by
        evaluation set and length of the longest overlap in words; `contaminated`, by whether a row overlaps with any
        set, without rows that were not compared."""
        self.usage = Usage()

    def add(self, batch: pa.RecordBatch) -> None:
        for measure in MEASURES:
            self.measures[measure.column].add(_numbers(batch.column(measure.column)))
        self._add_scores(batch.column("scores"), is_judged=False)
        self._add_scores(batch.column("judge"), is_judged=True)
        self.usage.add(batch)
        for name in CATEGORIES:
            self.counts[name].update(_count_values(batch.column(name)))
        for name in LISTS:
            self.counts[name].update(_count_values(batch.column(name).flatten()))
        for name in FLAWS:
            if num_flawed := len(batch) - batch.column(name).null_count:
                self.counts[name][True] += num_flawed
        self.counts["verdicts"].update(_count_rows(batch, "verifier", "verified"))
        repeated = batch.filter(batch.column("duplicate_of").is_valid())
        self.counts["duplicates"].update(_count_rows(repeated, "duplicate_kind", "duplicate_source"))
        for texts in batch.column("contamination").drop_null().to_pylist():
            self.counts["contaminated"][bool(texts)] += 1
            longest: Counter[str] = Counter()
            for overlap in map(orjson.loads, texts):
                longest[overlap["set"]] = max(overlap["ngram"], longest[overlap["set"]])
            self.counts["overlaps"].update(longest.items())

    def _add_scores(self, column: pa.Array, *, is_judged: bool) -> None:
        values_of: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        # Equal texts are parsed once: distinct scores are often few.
        for entry in column.drop_null().value_counts().to_pylist():
            value = orjson.loads(entry["values"])
            scores = value.get("scores") if is_judged else value
            for name, score in (scores or {}).items():
                if isinstance(score, int | float):
                    values_of[f"judge/{name}" if is_judged else name].append((float(score), entry["counts"]))
        for name, pairs in values_of.items():
            values, times = zip(*pairs, strict=True)
            self.scores[name].add(np.array(values), np.array(times, dtype=np.int64))


def _count_values(values: pa.Array) -> dict[Any, int]:
    return {entry["values"]: entry["counts"] for entry in values.value_counts().to_pylist()}


def _count_rows(batch: pa.RecordBatch, *names: str) -> dict[tuple[Any, ...], int]:
    """Rows by their values in the columns `names`, nulls included."""
    table = pa.Table.from_batches([batch.select(names)])
    grouped = table.group_by(names, use_threads=False).aggregate([([], "count_all")])
    keys = zip(*(grouped.column(name).to_pylist() for name in names), strict=True)
    return dict(zip(keys, grouped.column("count_all").to_pylist(), strict=True))


class Step(NamedTuple):
    """Rows and tokens left after one selection step."""

    name: str
    num_rows: int
    student_tokens: int
    """Rows that were not rendered count as 0."""
    completion_tokens: int
    """Tokens sampled from the teacher; rows with an unknown number count as 0."""


class FunnelCounts:
    """Counts rows by the first of `steps`, each a name and its drop reasons, that drops them, and by every reason."""

    def __init__(self, steps: Sequence[tuple[str, Sequence[str]]]) -> None:
        self._names = [name for name, _ in steps]
        self._reasons = [str(reason) for _, reasons in steps for reason in reasons]
        self._step_of_reason = np.array([place for place, (_, reasons) in enumerate(steps) for _ in reasons], dtype=int)
        self._reason_counts = np.zeros(len(self._reasons), dtype=np.int64)
        # The last column counts rows that no step drops.
        self._dropped = np.zeros((3, len(steps) + 1))

    def add(self, batch: pa.RecordBatch) -> None:
        """Counts rows by `drop_reasons`.

        Raises:
            InputError: a reason that no step has.
        """
        reasons = batch.column("drop_reasons")
        codes = pc.index_in(reasons.flatten(), value_set=pa.array(self._reasons, pa.string()))
        if codes.null_count:
            unknown = reasons.flatten().filter(codes.is_null())[0].as_py()
            raise InputError(
                f"drop_reasons holds {unknown!r}; expected one of {', '.join(self._reasons)}. Another version of "
                "Stillhouse wrote this dataset: build it again"
            )
        codes = codes.to_numpy().astype(np.int64)
        self._reason_counts += np.bincount(codes, minlength=len(self._reasons))
        first = np.full(len(batch), len(self._names))
        np.minimum.at(first, pc.list_parent_indices(reasons).to_numpy(), self._step_of_reason[codes])
        tokens = [batch.column(name).fill_null(0).to_numpy() for name in ("num_tokens", "completion_tokens")]
        for row, weights in enumerate((None, *tokens)):
            self._dropped[row] += np.bincount(first, weights=weights, minlength=len(self._names) + 1)

    def steps(self) -> list[Step]:
        """Rows left before the first step, after each, and at the end."""
        start = self._dropped.sum(axis=1)
        left = start[:, None] - np.cumsum(self._dropped[:, :-1], axis=1)
        after = [Step(name, *map(int, left[:, place])) for place, name in enumerate(self._names)]
        return [Step("distinct", *map(int, start)), *after, Step("kept", *map(int, self._dropped[:, -1]))]

    def reasons(self) -> dict[str, int]:
        """Rows by reason, in the order of the steps; a row counts for each of its reasons."""
        return {name: int(count) for name, count in zip(self._reasons, self._reason_counts, strict=True) if count}


class Accuracy(NamedTuple):
    """Right and wrong answers, with an interval of their share that accounts for several trajectories of one prompt."""

    right: int
    wrong: int
    interval: ConfidenceInterval

    @property
    def share(self) -> float:
        return self.right / (self.right + self.wrong)


class VerifiedRows:
    """Collects verified rows, at 13 bytes each."""

    def __init__(self) -> None:
        self._codes: dict[str | None, int] = {}
        empty = {"prompt": np.zeros(0, np.uint64), "tag": np.zeros(0, np.int32), "right": np.zeros(0, bool)}
        self._parts = [pd.DataFrame(empty)]

    def add(self, batch: pa.RecordBatch) -> None:
        known = batch.filter(batch.column("verified").is_valid())
        tags = known.column("tag").dictionary_encode(null_encoding="encode")
        codes = [self._codes.setdefault(tag, len(self._codes)) for tag in tags.dictionary.to_pylist()]
        part = {
            "prompt": hashes(known.column("prompt_id")),
            "tag": np.array(codes, np.int32)[tags.indices.to_numpy()],
            "right": known.column("verified").to_numpy(zero_copy_only=False).astype(bool),
        }
        self._parts.append(pd.DataFrame(part))

    def overall(self) -> Accuracy | None:
        """Accuracy over all verified rows; None without any."""
        rows = pd.concat(self._parts)
        return _accuracy(rows) if len(rows) else None

    def by_tag(self) -> dict[str | None, Accuracy]:
        """Accuracy by tag, sorted by name; None is for rows without a tag."""
        rows = dict(iter(pd.concat(self._parts).groupby("tag")))
        tags = sorted(self._codes, key=lambda tag: (tag is None, tag or ""))
        return {tag: _accuracy(rows[self._codes[tag]]) for tag in tags}


def _accuracy(rows: pd.DataFrame) -> Accuracy:
    by_prompt = rows.groupby("prompt")["right"].agg(["size", "sum"])
    kinds = by_prompt.groupby(["size", "sum"]).size().reset_index().to_numpy().tolist()
    groups = Counter({Group(size, num_right): num_prompts for size, num_right, num_prompts in kinds})
    num_right = int(rows["right"].sum())
    interval = wilson_interval(num_right / len(rows), effective_sample_size(groups))
    return Accuracy(num_right, len(rows) - num_right, interval)
