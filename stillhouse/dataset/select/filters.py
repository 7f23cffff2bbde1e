"""Filters: each decides from labels and limits alone which rows should not be trained on; and the funnel over them.

They look at one row at a time, so that the same filters decide while trajectories are still being sampled.
"""

from collections.abc import Callable
from functools import reduce
from itertools import groupby
from operator import or_
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.config import DatasetConfig
from stillhouse.config.dataset import FiltersConfig
from stillhouse.dataset.select.labels import arrow_batch, label_frame, score_column
from stillhouse.dataset.select.reasons import BITS, MEANINGS, DropReason
from stillhouse.types import StopReason


class Filter(NamedTuple):
    """A reason to drop rows."""

    step: str
    """Step of the funnel, named after the rows that pass; filters of one step are adjacent."""
    reason: DropReason
    drops: "Callable[[pd.DataFrame, FiltersConfig], pd.Series[bool] | None]"
    """True for rows to drop, null for rows without the label; None if the config sets no limit."""


def passes(labels: pd.DataFrame, config: DatasetConfig, max_tokens: int | None) -> "pd.Series[bool]":
    """Whether each row passes all `FILTERS`, before choices among rows.

    Args:
        labels: columns of the schema, as `labels.labels_of_rows` gives them or as pandas reads them from a file; a
            missing column was not measured.
        config: the limits.
        max_tokens: `student.max_length`, or None for the config's limit alone.
    """
    frame = label_frame(arrow_batch(labels), configured_scores(config))
    return pd.Series(drop_bits(frame, limits_of(config, max_tokens)) == 0, index=labels.index)


def limits_of(config: DatasetConfig, max_tokens: int | None) -> FiltersConfig:
    """The filters' limits, with the lower of the config's and the student's `max_tokens`."""
    bounds = [limit for limit in (config.filters.max_tokens, max_tokens) if limit is not None]
    return config.filters.model_copy(update={"max_tokens": min(bounds, default=None)})


def configured_scores(config: DatasetConfig) -> list[str]:
    """Sorted names of the scores in the config."""
    named = {*config.filters.min_scores, *config.filters.max_scores}
    return sorted(named if config.selection.score is None else {*named, config.selection.score})


def drop_bits(labels: pd.DataFrame, limits: FiltersConfig) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    """The drop reasons of each row of a `label_frame` as a bit mask."""
    bits = np.zeros(len(labels), np.uint64)
    for rule in FILTERS:
        drops = rule.drops(labels, limits)
        if drops is not None:
            bits[drops.to_numpy(dtype=bool, na_value=False)] |= np.uint64(BITS[rule.reason])
    return bits


def _below(values: "pd.Series[float]", low: float | None) -> "pd.Series[bool] | None":
    return None if low is None else values < low


def _above(values: "pd.Series[float]", high: float | None) -> "pd.Series[bool] | None":
    return None if high is None else values > high


def _at_least(values: "pd.Series[int]", low: int | None) -> "pd.Series[bool] | None":
    return None if low is None else values >= low


def _either(*drops: "pd.Series[bool] | None") -> "pd.Series[bool] | None":
    """True where any of `drops` is, even if others are null."""
    masks: list[pd.Series[bool]] = [mask for mask in drops if mask is not None]
    return reduce(or_, masks) if masks else None


def _ended(reason: StopReason) -> Filter:
    return Filter("finished", DropReason(reason.value), lambda labels, limits: labels["stop_reason"] == reason.value)


def _score_low(labels: pd.DataFrame, limits: FiltersConfig) -> "pd.Series[bool] | None":
    return _either(*(_below(labels[score_column(name)], least) for name, least in limits.min_scores.items()))


def _score_high(labels: pd.DataFrame, limits: FiltersConfig) -> "pd.Series[bool] | None":
    return _either(*(_above(labels[score_column(name)], most) for name, most in limits.max_scores.items()))


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


def _too_easy(labels: pd.DataFrame, limits: FiltersConfig) -> "pd.Series[bool] | None":
    return _either(
        _below(labels["student_nll"], limits.min_student_nll),
        _above(labels["student_pass_rate"], limits.max_student_pass_rate),
    )


def _too_hard(labels: pd.DataFrame, limits: FiltersConfig) -> "pd.Series[bool] | None":
    return _either(
        _above(labels["student_nll"], limits.max_student_nll),
        _below(labels["student_pass_rate"], limits.min_student_pass_rate),
    )


def _earlier(labels: pd.DataFrame, kind: str) -> "pd.Series[bool]":
    """Repeats of an earlier dataset; `duplicates.settle` decides on repeats within this one."""
    return labels["duplicate_source"].notna() & (labels["duplicate_kind"] == kind)


FILTERS: Final = (
    *(_ended(reason) for reason in StopReason if reason is not StopReason.ANSWERED),
    Filter("with an answer", DropReason.NO_ANSWER, lambda labels, limits: ~labels["has_answer"].fillna(False)),
    Filter("not wrong", DropReason.WRONG, lambda labels, limits: ~labels["verified"] if limits.drop_wrong else None),
    Filter("verified or allowed unverified", DropReason.UNVERIFIED,
           lambda labels, limits: None if limits.keep_unverified else labels["verified"].isna()),
    Filter("few enough tool errors", DropReason.TOOL_ERRORS,
           lambda labels, limits: _above(labels["num_tool_errors"], limits.max_tool_errors)),
    Filter("with turns within limits", DropReason.TOO_FEW_TURNS,
           lambda labels, limits: _below(labels["turns"], limits.min_turns)),
    Filter("with turns within limits", DropReason.TOO_MANY_TURNS,
           lambda labels, limits: _above(labels["turns"], limits.max_turns)),
    Filter("with an answer of the right length", DropReason.ANSWER_TOO_SHORT,
           lambda labels, limits: _below(labels["answer_chars"], limits.min_answer_chars)),
    Filter("with an answer of the right length", DropReason.ANSWER_TOO_LONG,
           lambda labels, limits: _above(labels["answer_chars"], limits.max_answer_chars)),
    Filter("in the format asked for", DropReason.FORMAT,
           lambda labels, limits: labels["format_problem"].notna() if limits.check_format else None),
    Filter("not refused", DropReason.REFUSAL,
           lambda labels, limits: labels["refusal"].notna() if limits.drop_refusals else None),
    Filter("in an allowed language", DropReason.LANGUAGE, _language),
    Filter("not repeating itself", DropReason.REPETITIVE,
           lambda labels, limits: _above(labels["repetition"], limits.max_repetition)),
    Filter("not repeating itself", DropReason.COMPRESSIBLE,
           lambda labels, limits: _below(labels["compression_ratio"], limits.min_compression_ratio)),
    Filter("without private data", DropReason.PRIVATE, _private),
    Filter("without objections", DropReason.OBJECTION, lambda labels, limits: labels["objections"].list.len() > 0),
    Filter("with scores within limits", DropReason.SCORE_LOW, _score_low),
    Filter("with scores within limits", DropReason.SCORE_HIGH, _score_high),
    Filter("not in an evaluation set", DropReason.CONTAMINATED,
           lambda labels, limits: _at_least(labels["longest_overlap"], limits.contamination_ngrams)),
    Filter("rendered by the student's template", DropReason.TEMPLATE_ERROR,
           lambda labels, limits: labels["template_problem"].notna()),
    Filter("short enough", DropReason.TOO_LONG, lambda labels, limits: _above(labels["num_tokens"], limits.max_tokens)),
    Filter("with something to learn", DropReason.NOTHING_SUPERVISED,
           lambda labels, limits: labels["num_supervised_tokens"] == 0),
    Filter("as hard as asked for", DropReason.TOO_EASY, _too_easy),
    Filter("as hard as asked for", DropReason.TOO_HARD, _too_hard),
    Filter("not a duplicate", DropReason.DUPLICATE,
           lambda labels, limits: None if limits.duplicates == "keep" else _earlier(labels, "exact")),
    Filter("not a duplicate", DropReason.NEAR_DUPLICATE,
           lambda labels, limits: _earlier(labels, "near") if limits.duplicates == "near" else None),
)  # fmt: skip
"""In the order of the funnel."""


STEPS: Final[tuple[tuple[str, tuple[DropReason, ...]], ...]] = (
    *((step, tuple(rule.reason for rule in rules)) for step, rules in groupby(FILTERS, lambda rule: rule.step)),
    ("of a prompt within the pass rates", (DropReason.PASS_RATE,)),
    ("preferred in its prompt", (DropReason.NOT_PREFERRED,)),
    ("within the quota of its tag", (DropReason.QUOTA,)),
    ("diverse", (DropReason.NOT_DIVERSE,)),
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
    passed = [len(reasons), *(num_rows for _, num_rows in funnel(reasons))]
    steps = "\n".join(
        f"  {after:>8}  {step}"
        for (step, _), before, after in zip(STEPS, passed, passed[1:], strict=False)
        if after < before
    )
    counts = {reason: int(np.count_nonzero(reasons & np.uint64(bit))) for reason, bit in BITS.items()}
    common = sorted((reason for reason in counts if counts[reason]), key=lambda reason: -counts[reason])
    return f"{steps}\nReasons: {', '.join(f'{reason} {counts[reason]}' for reason in common) or 'none'}\n" + "".join(
        f"  {reason}: {MEANINGS[reason]}\n" for reason in common
    )
