"""Reasons why a trajectory is dropped. A row's reasons are a bit mask, so that a million rows take 8 MB."""

from enum import StrEnum
from typing import Final


class DropReason(StrEnum):
    """Why a trajectory is dropped."""

    ERROR = "error"
    TIMEOUT = "timeout"
    CONTENT_FILTER = "content_filter"
    MAX_TURNS = "max_turns"
    LENGTH = "length"
    CONTEXT_OVERFLOW = "context_overflow"
    BUDGET = "budget"
    INVALID = "invalid"
    NO_ANSWER = "no_answer"
    WRONG = "wrong"
    UNVERIFIED = "unverified"
    TOOL_ERRORS = "tool_errors"
    TOO_FEW_TURNS = "too_few_turns"
    TOO_MANY_TURNS = "too_many_turns"
    ANSWER_TOO_SHORT = "answer_too_short"
    ANSWER_TOO_LONG = "answer_too_long"
    FORMAT = "format"
    REFUSAL = "refusal"
    LANGUAGE = "language"
    REPETITIVE = "repetitive"
    COMPRESSIBLE = "compressible"
    PRIVATE = "private"
    OBJECTION = "objection"
    SCORE_LOW = "score_low"
    SCORE_HIGH = "score_high"
    CONTAMINATED = "contaminated"
    TEMPLATE_ERROR = "template_error"
    TOO_LONG = "too_long"
    NOTHING_SUPERVISED = "nothing_supervised"
    TOO_EASY = "too_easy"
    TOO_HARD = "too_hard"
    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near_duplicate"
    PASS_RATE = "pass_rate"
    NOT_PREFERRED = "not_preferred"
    QUOTA = "quota"
    NOT_DIVERSE = "not_diverse"
    SURPLUS = "surplus"


MEANINGS: Final[dict[DropReason, str]] = {
    DropReason.ERROR: "a request failed for good",
    DropReason.TIMEOUT: "the rollout ran out of its wall time",
    DropReason.CONTENT_FILTER: "the provider withheld a completion",
    DropReason.MAX_TURNS: "the last allowed turn still called tools, and so did the closing answer if there was one",
    DropReason.LENGTH: "a completion was cut at its token limit",
    DropReason.CONTEXT_OVERFLOW: "the conversation outgrew the teacher's context",
    DropReason.BUDGET: "the rollout met its own cap on tokens or money",
    DropReason.INVALID: "the answer misses rollouts.response_schema",
    DropReason.NO_ANSWER: "the last message calls tools, is not the assistant's, or holds no text",
    DropReason.WRONG: "the answer is not the expected one or was not reached, and dataset.filters.drop_wrong is on",
    DropReason.UNVERIFIED: "nothing verifies the answer, and dataset.filters.keep_unverified is off",
    DropReason.TOOL_ERRORS: "more failed tool calls than dataset.filters.max_tool_errors",
    DropReason.TOO_FEW_TURNS: "fewer turns than dataset.filters.min_turns",
    DropReason.TOO_MANY_TURNS: "more turns than dataset.filters.max_turns",
    DropReason.ANSWER_TOO_SHORT: "a final answer of fewer characters than dataset.filters.min_answer_chars",
    DropReason.ANSWER_TOO_LONG: "a final answer of more characters than dataset.filters.max_answer_chars",
    DropReason.FORMAT: "the answer misses the format asked for, and dataset.filters.check_format is on",
    DropReason.REFUSAL: "the answer declines, and dataset.filters.drop_refusals is on",
    DropReason.LANGUAGE: "the answer's language is not one of dataset.filters.languages",
    DropReason.REPETITIVE: "more of the sampled text repeats itself than dataset.filters.max_repetition",
    DropReason.COMPRESSIBLE: "the sampled text compresses further than dataset.filters.min_compression_ratio",
    DropReason.PRIVATE: "the model wrote private data of a kind in dataset.filters.drop_private",
    DropReason.OBJECTION: "a function of dataset.labels.file objects",
    DropReason.SCORE_LOW: "a score is below its limit in dataset.filters.min_scores",
    DropReason.SCORE_HIGH: "a score is above its limit in dataset.filters.max_scores",
    DropReason.CONTAMINATED: "dataset.filters.contamination_ngrams words in a row, or more, stand in an evaluation set",
    DropReason.TEMPLATE_ERROR: "the student's chat template cannot render the messages",
    DropReason.TOO_LONG: "more student tokens than dataset.filters.max_tokens or student.max_length",
    DropReason.NOTHING_SUPERVISED: "no token of it would be trained on",
    DropReason.TOO_EASY: "below dataset.filters.min_student_nll or above dataset.filters.max_student_pass_rate",
    DropReason.TOO_HARD: "above dataset.filters.max_student_nll or below dataset.filters.min_student_pass_rate",
    DropReason.DUPLICATE: "it repeats a kept row or an earlier dataset; dataset.filters.duplicates is not keep",
    DropReason.NEAR_DUPLICATE: "it nearly repeats a kept row or an earlier dataset; dataset.filters.duplicates is near",
    DropReason.PASS_RATE: "the prompt's share of right trajectories is outside dataset.selection.min_pass_rate "
    "and max_pass_rate",
    DropReason.NOT_PREFERRED: "its prompt has dataset.selection.rows_per_prompt rows that dataset.selection.prefer "
    "puts first",
    DropReason.QUOTA: "its tag has as many rows as dataset.selection.quotas allows",
    DropReason.NOT_DIVERSE: "dataset.selection.max_diverse_rows rows differ more from each other",
    DropReason.SURPLUS: "dataset.selection.target_rows rows are there without it",
}
"""One sentence each, with the config key to loosen if there is one."""

BITS: Final[dict[DropReason, int]] = {reason: 1 << place for place, reason in enumerate(DropReason)}
"""The bit of each reason, of 64."""


def reasons_in(bits: int) -> list[DropReason]:
    """The reasons whose bits are set, in the order of `DropReason`."""
    return [reason for reason, bit in BITS.items() if bits & bit]
