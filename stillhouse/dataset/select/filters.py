"""Filters: each decides from labels and limits alone which rows should not be trained on; and the funnel over them.

They look at one row at a time, so that the same filters decide while trajectories are still being sampled. Labels are
columns backed by Arrow, null for what was not measured: a comparison with null is null and never drops a row.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby, pairwise
from operator import ge, gt, lt, or_
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.config import DatasetConfig
from stillhouse.config.dataset import FiltersConfig
from stillhouse.dataset.schema import COLUMNS
from stillhouse.dataset.select.reasons import BITS, DropReason
from stillhouse.types import JsonObject, StopReason

PLAIN: Final = (
    "id", "prompt_id", "sample_index", "tag", "turns", "num_tool_calls", "num_tool_errors", "stop_reason",
    "completion_tokens", "verifier", "verified", "has_answer", "answer_chars", "sampled_chars", "language", "refusal",
    "repetition", "compression_ratio", "format_problem", "private_data", "objections", "num_tokens",
    "num_supervised_tokens", "template_problem", "student_nll", "student_pass_rate", "prompt_cluster",
    "duplicate_of", "duplicate_kind", "duplicate_source",
)  # fmt: skip
"""Columns of the schema that filters and selection read as they are."""

_TYPES: Final = {column.name: column.kind.storage_type for column in COLUMNS}


def score_column(name: str) -> str:
    return f"scores.{name}"


def score_source(name: str) -> str:
    """The column of the schema that holds a score."""
    return "judge" if name.startswith("judge/") else "scores"


def label_batch(rows: Sequence[JsonObject]) -> pa.RecordBatch:
    """The label columns of rows as `rows.candidate_row` gives them."""
    names = [*PLAIN, "scores", "judge", "contamination"]
    return pa.RecordBatch.from_arrays(
        [pa.array([row.get(name) for row in rows], _TYPES[name]) for name in names], names
    )


def label_frame(batch: pa.RecordBatch, scores: Collection[str]) -> pd.DataFrame:
    """The columns that filters and selection read, one row for each of `batch`.

    Args:
        batch: columns of the schema by name, JSON as text or under Arrow's JSON type; missing ones become null.
        scores: names of scores, each of which becomes the column `score_column(name)`.

    Returns:
        `PLAIN`, where `verified` is the judge's verdict for rows under the verifier `judge`; `longest_overlap`, the
        longest n-gram shared with an evaluation set; the scores.
    """
    columns = {name: _column(batch, name) for name in PLAIN}
    columns["verified"] = _with_verdicts(columns["verified"], columns["verifier"], batch)
    columns["longest_overlap"] = _longest_overlap(_column(batch, "contamination"))
    for source in ("scores", "judge"):
        if names := [name for name in scores if score_source(name) == source]:
            rows = list(_scores_of(batch, source))
            columns |= {score_column(name): pa.array((row.get(name) for row in rows), pa.float64()) for name in names}
    return pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)


def score_names_in(batch: pa.RecordBatch) -> set[str]:
    """Names of all scores in the columns `scores` and `judge`."""
    return {name for column in ("scores", "judge") for scores in _scores_of(batch, column) for name in scores}


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, _TYPES[name])
    return batch.column(name).cast(_TYPES[name])


def _with_verdicts(verified: pa.Array, verifier: pa.Array, batch: pa.RecordBatch) -> pa.Array:
    is_judged = pc.fill_null(pc.equal(verifier, "judge"), False)
    if not pc.any(is_judged).as_py():
        return verified
    judgements = _parsed(pc.if_else(is_judged, _column(batch, "judge"), None))
    return pc.if_else(is_judged, pa.array((row.get("verdict") for row in judgements), pa.bool_()), verified)


def _longest_overlap(contamination: pa.Array) -> pa.Array:
    longest = np.zeros(len(contamination), np.int64)
    hits = pc.list_flatten(contamination)
    lengths = np.array([hit["ngram"] for hit in _parsed(hits)], np.int64)
    np.maximum.at(longest, pc.list_parent_indices(contamination).to_numpy(), lengths)
    return pa.array(longest, mask=contamination.is_null().to_numpy(zero_copy_only=False))


def _scores_of(batch: pa.RecordBatch, column: str) -> Iterator[Mapping[str, float | None]]:
    rows = _parsed(_column(batch, column))
    return (row.get("scores") or {} for row in rows) if column == "judge" else rows


def _parsed(texts: pa.Array) -> Iterator[dict[str, Any]]:
    return (orjson.loads(text) if text is not None else {} for text in texts.to_pylist())


Drops = Callable[[pd.DataFrame, FiltersConfig], "pd.Series[bool] | None"]
"""True for rows to drop, null for rows without the label; None if the config sets no limit."""


class Filter(NamedTuple):
    """A reason to drop rows."""

    step: str
    """Step of the funnel, named after the rows that pass; filters of one step are adjacent."""
    reason: DropReason
    drops: Drops


def passes(rows: Sequence[JsonObject], config: DatasetConfig, max_tokens: int | None) -> list[bool]:
    """Whether each row passes all `FILTERS`, before choices among rows; a missing column was not measured.

    `max_tokens` is `student.max_length`, or None for the config's limit alone.
    """
    labels = label_frame(label_batch(rows), configured_scores(config))
    return [bool(bits == 0) for bits in drop_bits(labels, limits_of(config, max_tokens))]


def limits_of(config: DatasetConfig, max_tokens: int | None) -> FiltersConfig:
    """The filters' limits, with the lower of the config's and the student's `max_tokens`."""
    limits = [limit for limit in (config.filters.max_tokens, max_tokens) if limit is not None]
    return config.filters.model_copy(update={"max_tokens": min(limits, default=None)})


def configured_scores(config: DatasetConfig) -> list[str]:
    """Sorted names of the scores in the config."""
    names = {*config.filters.min_scores, *config.filters.max_scores, config.selection.score}
    return sorted(name for name in names if name is not None)


def drop_bits(labels: pd.DataFrame, limits: FiltersConfig) -> npt.NDArray[np.uint64]:
    """The drop reasons of each row of a `label_frame` as a bit mask."""
    bits = np.zeros(len(labels), np.uint64)
    for rule in FILTERS:
        drops = rule.drops(labels, limits)
        if drops is not None:
            bits[drops.to_numpy(dtype=bool, na_value=False)] |= np.uint64(BITS[rule.reason])
    return bits


def _limit(label: str, is_beyond: Callable[[Any, Any], Any], key: str) -> Drops:
    """Drops rows whose label `is_beyond` the limit under `key`."""

    def drops(labels: pd.DataFrame, limits: FiltersConfig) -> "pd.Series[bool] | None":
        limit = getattr(limits, key)
        return None if limit is None else is_beyond(labels[label], limit)

    return drops


def _present(label: str, key: str | None = None) -> Drops:
    """Drops rows that have a label, if the flag `key` is on."""
    return lambda labels, limits: labels[label].notna() if key is None or getattr(limits, key) else None


def _any(masks: "Sequence[pd.Series[bool] | None]") -> "pd.Series[bool] | None":
    """True where any mask is, even if others are null."""
    given: list[pd.Series[bool]] = [mask for mask in masks if mask is not None]
    return reduce(or_, given) if given else None


def _either(first: Drops, second: Drops) -> Drops:
    return lambda labels, limits: _any([first(labels, limits), second(labels, limits)])


def _scores(is_beyond: Callable[[Any, Any], Any], key: str) -> Drops:
    """Drops rows with a score that `is_beyond` its limit under `key`."""
    return lambda labels, limits: _any(
        [is_beyond(labels[score_column(name)], limit) for name, limit in getattr(limits, key).items()]
    )


def _ended(reason: StopReason) -> Filter:
    return Filter("finished", DropReason(reason.value), lambda labels, limits: labels["stop_reason"] == reason.value)


def _private(labels: pd.DataFrame, limits: FiltersConfig) -> "pd.Series[bool] | None":
    if not limits.drop_private:
        return None
    kinds = pa.array(labels["private_data"])
    is_dropped = pc.is_in(pc.list_flatten(kinds), pa.array(limits.drop_private))
    rows = pc.list_parent_indices(kinds).filter(is_dropped).to_pandas()
    return labels.index.to_series().isin(rows)


def _language(labels: pd.DataFrame, limits: FiltersConfig) -> "pd.Series[bool] | None":
    language = labels["language"]
    return language.notna() & ~language.isin(limits.languages) if limits.languages else None


def _repeats_earlier(kind: str, settings: Sequence[str]) -> Drops:
    """Drops repeats of an earlier dataset; `choices.settle` decides on repeats within this one."""
    return lambda labels, limits: (
        labels["duplicate_source"].notna() & (labels["duplicate_kind"] == kind)
        if limits.duplicates in settings
        else None
    )


FILTERS: Final = (
    *(_ended(reason) for reason in StopReason if reason is not StopReason.ANSWERED),
    Filter("with an answer", DropReason.NO_ANSWER, lambda labels, limits: ~labels["has_answer"].fillna(False)),
    Filter("not wrong", DropReason.WRONG, lambda labels, limits: ~labels["verified"] if limits.drop_wrong else None),
    Filter("verified or allowed unverified", DropReason.UNVERIFIED,
           lambda labels, limits: None if limits.keep_unverified else labels["verified"].isna()),
    Filter("few enough tool errors", DropReason.TOOL_ERRORS, _limit("num_tool_errors", gt, "max_tool_errors")),
    Filter("with turns within limits", DropReason.TOO_FEW_TURNS, _limit("turns", lt, "min_turns")),
    Filter("with turns within limits", DropReason.TOO_MANY_TURNS, _limit("turns", gt, "max_turns")),
    Filter("with an answer of the right length", DropReason.ANSWER_TOO_SHORT,
           _limit("answer_chars", lt, "min_answer_chars")),
    Filter("with an answer of the right length", DropReason.ANSWER_TOO_LONG,
           _limit("answer_chars", gt, "max_answer_chars")),
    Filter("in the format asked for", DropReason.FORMAT, _present("format_problem", "check_format")),
    Filter("not refused", DropReason.REFUSAL, _present("refusal", "drop_refusals")),
    Filter("in an allowed language", DropReason.LANGUAGE, _language),
    Filter("not repeating itself", DropReason.REPETITIVE, _limit("repetition", gt, "max_repetition")),
    Filter("not repeating itself", DropReason.COMPRESSIBLE, _limit("compression_ratio", lt, "min_compression_ratio")),
    Filter("without private data", DropReason.PRIVATE, _private),
    Filter("without objections", DropReason.OBJECTION, lambda labels, limits: labels["objections"].list.len() > 0),
    Filter("with scores within limits", DropReason.SCORE_LOW, _scores(lt, "min_scores")),
    Filter("with scores within limits", DropReason.SCORE_HIGH, _scores(gt, "max_scores")),
    Filter("not in an evaluation set", DropReason.CONTAMINATED, _limit("longest_overlap", ge, "contamination_ngrams")),
    Filter("rendered by the student's template", DropReason.TEMPLATE_ERROR, _present("template_problem")),
    Filter("short enough", DropReason.TOO_LONG, _limit("num_tokens", gt, "max_tokens")),
    Filter("with something to learn", DropReason.NOTHING_SUPERVISED,
           lambda labels, limits: labels["num_supervised_tokens"] == 0),
    Filter("as hard as asked for", DropReason.TOO_EASY,
           _either(_limit("student_nll", lt, "min_student_nll"),
                   _limit("student_pass_rate", gt, "max_student_pass_rate"))),
    Filter("as hard as asked for", DropReason.TOO_HARD,
           _either(_limit("student_nll", gt, "max_student_nll"),
                   _limit("student_pass_rate", lt, "min_student_pass_rate"))),
    Filter("not a duplicate", DropReason.DUPLICATE, _repeats_earlier("exact", ("exact", "near"))),
    Filter("not a duplicate", DropReason.NEAR_DUPLICATE, _repeats_earlier("near", ("near",))),
)  # fmt: skip
"""In the order of the funnel."""


STEPS: Final[tuple[tuple[str, tuple[DropReason, ...]], ...]] = (
    *((step, tuple(rule.reason for rule in rules)) for step, rules in groupby(FILTERS, lambda rule: rule.step)),
    ("of a prompt within the pass rates", (DropReason.PASS_RATE,)),
    ("preferred in its prompt", (DropReason.NOT_PREFERRED,)),
    ("within the quota of its tag", (DropReason.QUOTA,)),
    ("within the target", (DropReason.SURPLUS,)),
)
"""Name and drop reasons of each step; the name describes the rows that pass."""


def funnel(reasons: npt.NDArray[np.uint64]) -> list[tuple[str, int]]:
    """Each step's name and the number of rows that pass it and all before."""
    passed, mask = [], 0
    for step, step_reasons in STEPS:
        mask |= sum(BITS[reason] for reason in step_reasons)
        passed.append((step, int(np.count_nonzero((reasons & np.uint64(mask)) == 0))))
    return passed


def explanation(reasons: npt.NDArray[np.uint64]) -> str:
    """Lines of text: the steps that lose rows, and count and meaning of each reason."""
    steps = [
        f"  {after:>8}  {step}\n"
        for (_, before), (step, after) in pairwise([("", len(reasons)), *funnel(reasons)])
        if after < before
    ]
    counts = {reason: int(np.count_nonzero(reasons & np.uint64(bit))) for reason, bit in BITS.items()}
    common = sorted((reason for reason in counts if counts[reason]), key=lambda reason: -counts[reason])
    meanings = [f"  {reason}: {reason.meaning}\n" for reason in common]
    totals = ", ".join(f"{reason} {counts[reason]}" for reason in common) or "none"
    return f"{''.join(steps)}Reasons: {totals}\n{''.join(meanings)}"
