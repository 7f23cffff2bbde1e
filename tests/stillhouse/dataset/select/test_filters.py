from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.config import DatasetConfig
from stillhouse.dataset.select.filters import drop_bits, label_batch, label_frame, passes
from stillhouse.dataset.select.reasons import reasons_in
from stillhouse.types import StopReason

Row = dict[str, Any]
MakeRow = Callable[..., Row]


def reasons(row: Row, longest: int | None = 100, **filters: Any) -> list[str]:
    config = DatasetConfig(labels={"student_samples": 1}, filters=filters)
    labels = label_frame(label_batch([row]), config.score_names)
    return reasons_in(int(drop_bits(labels, config.limits, longest)[0]))


STRICT: dict[str, Any] = {
    "keep_unverified": False, "max_tool_errors": 0, "turns": [2, 2], "answer_chars": [10, 10], "languages": ["en"],
    "drop_refusals": True, "max_repetition": 0.5, "min_compression_ratio": 0.5, "drop_private": ["email", "secret"],
    "scores": {"reward": [0.5, 0.5], "judge/tone": [0.5, None]}, "student_nll": [1.0, 1.0],
    "student_pass_rate": [0.5, 0.5], "duplicates": "near", "contamination_ngrams": 9,
}  # fmt: skip
AT_THE_LIMITS: Row = {
    "language": "en", "repetition": 0.5, "compression_ratio": 0.5, "private_data": ["phone"], "objections": [],
    "scores": '{"reward": 0.5, "other": null}', "judge": '{"scores": {"judge/tone": 0.5}}', "student_nll": 1.0,
    "student_pass_rate": 0.5, "contamination": ['{"ngram": 8}'],
}  # fmt: skip
"""A row that the strict limits just allow."""


def test_a_good_row_has_no_reason_at_the_very_limits(make_row: MakeRow) -> None:
    assert reasons(make_row(**AT_THE_LIMITS), **STRICT) == []


def test_what_was_not_measured_drops_nothing(make_row: MakeRow) -> None:
    unknown = {"num_tokens": None, "num_supervised_tokens": None, "answer_chars": None, "turns": None}
    assert reasons(make_row(**unknown), **STRICT) == []


@pytest.mark.parametrize(
    ("change", "filters", "expected"),
    [
        *(({"stop_reason": stop.value}, {}, [stop.value]) for stop in StopReason if stop is not StopReason.ANSWERED),
        ({"has_answer": False}, {}, ["no_answer"]),
        ({"has_answer": None}, {}, ["no_answer"]),
        ({"verified": False}, {}, ["wrong"]),
        ({"verified": False}, {"drop_wrong": False}, []),
        ({"verified": None}, {}, []),
        ({"verified": None}, {"keep_unverified": False}, ["unverified"]),
        ({"verified": False}, {"keep_unverified": False, "drop_wrong": False}, []),
        ({"num_tool_errors": 2}, {"max_tool_errors": 2}, []),
        ({"num_tool_errors": 3}, {"max_tool_errors": 2}, ["tool_errors"]),
        ({"turns": 1}, {"turns": [2, None]}, ["too_few_turns"]),
        ({"turns": 3}, {"turns": [None, 2]}, ["too_many_turns"]),
        ({"answer_chars": 9}, {"answer_chars": [10, None]}, ["answer_too_short"]),
        ({"answer_chars": 11}, {"answer_chars": [None, 10]}, ["answer_too_long"]),
        ({"format_problem": "no JSON"}, {}, ["format"]),
        ({"format_problem": "no JSON"}, {"check_format": False}, []),
        ({"refusal": "I cannot"}, {"drop_refusals": True}, ["refusal"]),
        ({"refusal": "I cannot"}, {}, []),
        ({"language": "de"}, {"languages": ["en", "fr"]}, ["language"]),
        ({"language": "de"}, {}, []),
        ({"language": None}, {"languages": ["en"]}, []),
        ({"repetition": 0.51}, {"max_repetition": 0.5}, ["repetitive"]),
        ({"compression_ratio": 0.49}, {"min_compression_ratio": 0.5}, ["compressible"]),
        ({"private_data": ["ip", "email"]}, {"drop_private": ["email"]}, ["private"]),
        ({"private_data": ["ip", "email"]}, {"drop_private": ["card"]}, []),
        ({"private_data": ["email"]}, {}, []),
        ({"objections": ["too sweet"]}, {}, ["objection"]),
        ({"scores": '{"a": 0.4, "b": 1}'}, {"scores": {"a": [0.5, None], "b": [0.5, None]}}, ["score_low"]),
        ({"scores": '{"a": null}'}, {"scores": {"a": [0.5, None]}}, []),
        ({"scores": '{"a": 0.6}'}, {"scores": {"a": [None, 0.5]}}, ["score_high"]),
        ({"judge": '{"scores": {"judge/tone": 0.2}}'}, {"scores": {"judge/tone": [0.5, None]}}, ["score_low"]),
        ({"judge": '{"scores": null, "verdict": null}'}, {"scores": {"judge/tone": [0.5, None]}}, []),
        ({"contamination": ['{"ngram": 13}', '{"ngram": 8}']}, {"contamination_ngrams": 13}, ["contaminated"]),
        ({"contamination": ['{"ngram": 8}']}, {"contamination_ngrams": 9}, []),
        ({"contamination": ['{"ngram": 8}']}, {}, ["contaminated"]),
        ({"contamination": ['{"ngram": 8}']}, {"contamination_ngrams": None}, []),
        ({"num_tokens": None, "template_problem": "no"}, {}, ["template_error"]),
        ({"num_tokens": 101}, {}, ["too_long"]),
        ({"num_supervised_tokens": 0}, {}, ["nothing_supervised"]),
        ({"student_nll": 0.9}, {"student_nll": [1.0, None]}, ["too_easy"]),
        ({"student_nll": 1.1}, {"student_nll": [None, 1.0]}, ["too_hard"]),
        ({"student_pass_rate": 0.9}, {"student_pass_rate": [None, 0.8]}, ["too_easy"]),
        ({"student_pass_rate": 0.1}, {"student_pass_rate": [0.2, None], "student_nll": [None, 1.0]}, ["too_hard"]),
        ({"duplicate_kind": "exact", "duplicate_source": "v1"}, {"duplicates": "exact"}, ["duplicate"]),
        ({"duplicate_kind": "near", "duplicate_source": "v1"}, {"duplicates": "exact"}, []),
        ({"duplicate_kind": "near", "duplicate_source": "v1"}, {"duplicates": "near"}, ["near_duplicate"]),
        ({"duplicate_kind": "exact", "duplicate_source": "v1"}, {}, []),
        ({"duplicate_kind": "exact", "duplicate_of": "other"}, {"duplicates": "near"}, []),
        (
            {"stop_reason": "max_turns", "has_answer": False, "verified": False, "num_tool_errors": 1},
            {"max_tool_errors": 0},
            ["max_turns", "no_answer", "wrong", "tool_errors"],
        ),
    ],
)  # fmt: skip
def test_every_reason_is_given(change: Row, filters: dict[str, Any], expected: list[str], make_row: MakeRow) -> None:
    assert reasons(make_row(**change), **filters) == expected


@pytest.mark.parametrize(
    ("verdict", "verifier", "expected"),
    [
        ("false", "judge", ["wrong"]),
        ("true", "judge", []),
        ("null", "judge", ["unverified"]),
        ("true", "exact", ["wrong"]),
    ],
)
def test_the_judge_decides_if_it_verifies(verdict: str, verifier: str, expected: list[str], make_row: MakeRow) -> None:
    row = make_row(
        verifier=verifier, verified=None if verifier == "judge" else False, judge=f'{{"verdict": {verdict}}}'
    )
    assert reasons(row, keep_unverified=False) == expected


def test_no_limit_on_tokens_where_rows_are_not_rendered(make_row: MakeRow) -> None:
    assert reasons(make_row(num_tokens=10**9), longest=None) == []


def test_rows_pass_that_no_filter_drops(make_row: MakeRow) -> None:
    rows = [
        make_row("a", **AT_THE_LIMITS),
        make_row("b", verified=None, scores='{"reward": 0.1}'),
        make_row("c", verified=False, private_data=["email"], num_tokens=None),
        make_row("d", objections=["no"], contamination=['{"ngram": 9}']),
    ]
    config = DatasetConfig(filters={"scores": {"reward": [0.5, None]}, "contamination_ngrams": 9})
    assert passes(rows, config, 100) == [True, False, False, False]
    assert passes([], config, None) == []
