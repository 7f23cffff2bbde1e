"""Selects the rows to keep from all shards: filters, then choices among the rows that pass, then the split.

The result depends on labels and config alone, not on shards or the order of rows. Among rows with equal ids the first
wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from textwrap import shorten
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from stillhouse.config import DatasetConfig, SelectionConfig
from stillhouse.dataset.read import read_file
from stillhouse.dataset.schema import CandidateShard
from stillhouse.dataset.select.candidates import Candidates, read_candidates, score_names
from stillhouse.dataset.select.choices import (
    Mask,
    check_quotas,
    duplicate_groups,
    in_validation,
    outside_band,
    over_quota,
    over_target,
    pass_rates,
    preference,
    settle,
)
from stillhouse.dataset.select.reasons import (
    BITS,
    DUPLICATE,
    NEAR_DUPLICATE,
    NOT_PREFERRED,
    PASS_RATE,
    QUOTA,
    SURPLUS,
    explanation,
    reasons_in,
)
from stillhouse.errors import ConfigError, NothingKept

_NUM_ANSWERS: Final = 2
"""Answers shown where no row is kept."""
_ANSWER_CHARACTERS: Final = 120


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The decision on every row; arrays have one entry a row, in the order of the shards."""

    reasons: npt.NDArray[np.uint64]
    """Drop reasons as `reasons.BITS`; 0 for rows that are kept or repeated."""
    splits: npt.NDArray[np.int8]
    """0 for `train`, 1 for `validation`, -1 for rows that are not kept."""
    pass_rates: npt.NDArray[np.float32]
    """Right rows over verified rows of the row's prompt; NaN without any."""
    verified: npt.NDArray[np.int8]
    """1 for right, 0 for wrong, -1 for unverified; the judge's verdict if the verifier is `judge`."""
    repeated: Mask
    """Rows with the id of an earlier row: written to no file and counted nowhere else."""

    def reasons_of(self, row: int) -> list[str]:
        return reasons_in(int(self.reasons[row]))


def select_rows(shards: Sequence[CandidateShard], config: DatasetConfig, *, max_tokens: int | None) -> Selection:
    """Return the decision on every row of `shards`.

    `max_tokens` is `student.max_length`, or None where rows are not rendered. Raises NothingKept if no row is kept, or
    none to train on; InputError if a file lacks columns or rows; ConfigError if the config names a score or has a quota
    for a tag that no row has.
    """
    candidates = read_candidates(shards, config, max_tokens)
    rows = candidates.rows.assign(preference=preference(candidates.rows, config.selection))
    _check_names(candidates, shards, config)
    rates = pass_rates(rows)
    reasons = _choose(rows, candidates.reasons, rates, config.selection)
    is_repeated = rows["is_repeated"].to_numpy()
    kept = (reasons == 0) & ~is_repeated
    if not kept.any():
        raise NothingKept(
            f"no trajectory of {len(rows)} is kept; expected at least one. Left after each step:\n"
            f"  {len(rows):>8}  rollouts\n  {np.count_nonzero(~is_repeated):>8}  distinct\n"
            f"{explanation(reasons[~is_repeated])}{_answers(shards)}Read them all: stillhouse view. Then name another "
            "teacher, or loosen the section `dataset`"
        )
    is_validation = in_validation(rows, kept, config.validation_fraction)
    if (kept == is_validation).all():
        raise NothingKept(
            f"all {np.count_nonzero(kept)} kept rows fall into the validation split; expected some to train on. Set "
            f"dataset.validation_fraction (now {config.validation_fraction}) lower"
        )
    return Selection(
        reasons=reasons,
        splits=np.where(kept, is_validation, -1).astype(np.int8),
        pass_rates=rates.astype(np.float32),
        verified=rows["verified"].to_numpy(),
        repeated=is_repeated,
    )


def _choose(
    rows: pd.DataFrame,
    filter_reasons: npt.NDArray[np.uint64],
    rates: npt.NDArray[np.float64],
    selection: SelectionConfig,
) -> npt.NDArray[np.uint64]:
    """Return the filters' reasons, and for rows that pass them the reason of the first choice that drops them."""
    reasons = filter_reasons.copy()
    is_counted = ~rows["is_repeated"].to_numpy()

    def drop(reason: str, dropped: Mask) -> None:
        reasons[dropped] |= np.uint64(BITS[reason])

    def remaining() -> Mask:
        return is_counted & (reasons == 0)

    drop(PASS_RATE, is_counted & outside_band(rates, selection))
    duplicates = duplicate_groups(rows)
    for reason in (DUPLICATE, NEAR_DUPLICATE):
        # A duplicate of a row that repeats an earlier dataset repeats it as well.
        drop(reason, is_counted & (filter_reasons[duplicates.original] & np.uint64(BITS[reason]) > 0))
    settled = settle(rows, remaining(), duplicates, selection.rows_per_prompt)
    drop(DUPLICATE, settled.repeats)
    drop(NEAR_DUPLICATE, settled.near_repeats)
    drop(NOT_PREFERRED, settled.refused)
    drop(QUOTA, over_quota(rows, remaining(), selection.quotas))
    drop(SURPLUS, over_target(rows, remaining(), selection.target_rows))
    return reasons


def _check_names(candidates: Candidates, shards: Sequence[CandidateShard], config: DatasetConfig) -> None:
    check_quotas(config.selection.quotas, candidates.rows["tag"].cat.categories)
    is_passed = (candidates.reasons == 0) & ~candidates.rows["is_repeated"]
    unknown = sorted(set(config.score_names) - candidates.scores)
    # If no row passes, none may have been scored, and the funnel explains more.
    if unknown and is_passed.any():
        raise ConfigError(
            f"the config goes by the score {', '.join(map(repr, unknown))}, which no trajectory has; seen: "
            f"{', '.join(map(repr, score_names(shards))) or 'none'}. Correct dataset.selection.prefer "
            "or dataset.filters.scores, or have it measured"
        )


def _answers(shards: Sequence[CandidateShard]) -> str:
    """Return lines of text: the first answers beside what was expected, and who gave them."""
    columns = ["teacher", "messages", "expected_answer"]
    rows = chain.from_iterable(read_file(shard.candidates, columns) for shard in shards)
    lines = []
    for row in islice(rows, _NUM_ANSWERS):
        last = row["messages"][-1] if row["messages"] else {}
        answer = shorten(str(last.get("content") or "nothing"), _ANSWER_CHARACTERS)
        expected = "nothing to compare with" if row["expected_answer"] is None else f"{row['expected_answer']!r}"
        lines.append(f"  teacher {row['teacher']!r} answered {answer!r}; expected {expected}\n")
    return "".join(lines)
