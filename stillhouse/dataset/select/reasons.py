"""Reasons why a trajectory is dropped. A row's reasons are a bit mask, so that a million rows take 8 MB."""

from enum import StrEnum
from typing import Final, Self


class DropReason(StrEnum):
    """Why a trajectory is dropped; `meaning` is one sentence, with the config key to loosen if there is one."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        reason = str.__new__(cls, value)
        reason._value_, reason.meaning = value, meaning
        return reason

    ERROR = "error", "a request failed for good"
    TIMEOUT = "timeout", "the rollout ran out of its wall time"
    CONTENT_FILTER = "content_filter", "the provider withheld a completion"
    MAX_TURNS = "max_turns", "the last allowed turn still called tools, and so did the closing answer if there was one"
    LENGTH = "length", "a completion was cut at its token limit"
    CONTEXT_OVERFLOW = "context_overflow", "the conversation outgrew the teacher's context"
    BUDGET = "budget", "the rollout met its own cap on tokens or money"
    MALFORMED = "malformed", "the model wrote a call that its endpoint could not read"
    UNFINISHED = "unfinished", "a completion may be cut, by a finish reason that rollouts.finish_reasons does not name"
    INVALID = "invalid", "the answer misses rollouts.response_schema"
    NO_ANSWER = "no_answer", "the last message calls tools, is not the assistant's, or holds no text"
    WRONG = "wrong", "the answer is not the expected one or was not reached, and dataset.filters.drop_wrong is on"
    UNVERIFIED = "unverified", "nothing verifies the answer, and dataset.filters.keep_unverified is off"
    TOOL_ERRORS = "tool_errors", "more failed tool calls than dataset.filters.max_tool_errors"
    TOO_FEW_TURNS = "too_few_turns", "fewer turns than dataset.filters.min_turns"
    TOO_MANY_TURNS = "too_many_turns", "more turns than dataset.filters.max_turns"
    ANSWER_TOO_SHORT = "answer_too_short", "a final answer of fewer characters than dataset.filters.min_answer_chars"
    ANSWER_TOO_LONG = "answer_too_long", "a final answer of more characters than dataset.filters.max_answer_chars"
    FORMAT = "format", "the answer misses the format asked for, and dataset.filters.check_format is on"
    REFUSAL = "refusal", "the answer declines, and dataset.filters.drop_refusals is on"
    LANGUAGE = "language", "the answer's language is not one of dataset.filters.languages"
    REPETITIVE = "repetitive", "more of the sampled text repeats itself than dataset.filters.max_repetition"
    COMPRESSIBLE = "compressible", "the sampled text compresses further than dataset.filters.min_compression_ratio"
    PRIVATE = "private", "the model wrote private data of a kind in dataset.filters.drop_private"
    OBJECTION = "objection", "a function of dataset.labels.file objects"
    SCORE_LOW = "score_low", "a score is below its limit in dataset.filters.min_scores"
    SCORE_HIGH = "score_high", "a score is above its limit in dataset.filters.max_scores"
    CONTAMINATED = (
        "contaminated",
        "dataset.filters.contamination_ngrams words in a row, or more, stand in an evaluation set",
    )
    TEMPLATE_ERROR = "template_error", "the student's chat template cannot render the messages"
    TOO_LONG = "too_long", "more student tokens than dataset.filters.max_tokens or student.max_length"
    NOTHING_SUPERVISED = "nothing_supervised", "no token of it would be trained on"
    TOO_EASY = "too_easy", "below dataset.filters.min_student_nll or above dataset.filters.max_student_pass_rate"
    TOO_HARD = "too_hard", "above dataset.filters.max_student_nll or below dataset.filters.min_student_pass_rate"
    TEACHER_SURE = "teacher_sure", "the teacher's surprise is below dataset.filters.min_teacher_nll"
    TEACHER_SURPRISED = "teacher_surprised", "the teacher's surprise is above dataset.filters.max_teacher_nll"
    DUPLICATE = "duplicate", "it repeats a kept row or an earlier dataset; dataset.filters.duplicates is not keep"
    NEAR_DUPLICATE = (
        "near_duplicate",
        "it nearly repeats a kept row or an earlier dataset; dataset.filters.duplicates is near",
    )
    PASS_RATE = (
        "pass_rate",
        "the prompt's share of right trajectories is outside dataset.selection.min_pass_rate and max_pass_rate",
    )
    NOT_PREFERRED = (
        "not_preferred",
        "its prompt has dataset.selection.rows_per_prompt rows that dataset.selection.prefer puts first",
    )
    QUOTA = "quota", "its tag has as many rows as dataset.selection.quotas allows"
    NOT_DIVERSE = "not_diverse", "dataset.selection.max_diverse_rows rows differ more from each other"
    SURPLUS = "surplus", "dataset.selection.target_rows rows are there without it"


BITS: Final[dict[DropReason, int]] = {reason: 1 << place for place, reason in enumerate(DropReason)}
"""The bit of each reason, of 64."""


def reasons_in(bits: int) -> list[DropReason]:
    """The reasons whose bits are set, in the order of `DropReason`."""
    return [reason for reason, bit in BITS.items() if bits & bit]
