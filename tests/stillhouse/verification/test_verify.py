from collections.abc import Callable
from decimal import Decimal

import pytest

from stillhouse.verification.verify import final_answer, last_number, verify, verify_trajectory
from stillhouse.types import ErrorRecord, PromptMetadata, StopReason, Trajectory


def prompt(expected: str | None, verifier: str = "numeric", **metadata: object) -> PromptMetadata:
    return PromptMetadata("p", expected, None, verifier, metadata)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 10234.", "10234"),
        ("First 3, then 1,234,567.50 coins", "1234567.50"),
        ("it is -5", "-5"),
        ("it is \u22125", "-5"),
        ("10-5", "5"),
        ("(3)-4", "4"),
        ("about 1.5e3", "1500"),
        ("1_000", "1000"),
        ("one half is 1/2", "0.5"),
        ("1/0", "1"),
        ("12,34", "34"),
        ("\\boxed{42}", "42"),
        ("$7", "7"),
        ("0.250", "0.25"),
    ],
)
def test_last_number_reads_what_people_write(text: str, number: str) -> None:
    assert last_number(text) == Decimal(number)


def test_text_without_digits_has_no_number() -> None:
    assert last_number("none at all") is None


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("The answer is 1,234.", "1234", True),
        ("The answer is 1234.0", "1234", True),
        ("The answer is 1235.", "1234", False),
        ("I cannot say.", "1234", False),
        ("100000001", "100000000", False),
        ("0.33333333", "1/3", True),
        ("0.33", "1/3", False),
        ("1e999", "1e-999", False),
        ("9" * 5000, "9" * 5000, True),
        ("5", "no number here", None),
        ("5", None, None),
    ],
)
def test_numeric(answer: str, expected: str | None, verdict: bool | None) -> None:
    assert verify(answer, prompt(expected)) is verdict


def test_tolerance_of_the_row_is_absolute() -> None:
    assert verify("3.3", prompt("3.33", tolerance=0.05)) is True
    assert verify("3.2", prompt("3.33", tolerance=0.05)) is False


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("  Paris. ", "paris", True),
        ('"New\n York"', "new york", True),
        ("\uff11\uff12", "12", True),
        ("Paris, France", "paris", False),
    ],
)
def test_exact_ignores_form_only(answer: str, expected: str, verdict: bool) -> None:
    assert verify(answer, prompt(expected, "exact")) is verdict


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("It is PARIS, of course", "Paris", True),
        ("The answer is 14", "4", False),
        ("It costs $5 (five)", "$5", True),
    ],
)
def test_contains_looks_for_whole_words(answer: str, expected: str, verdict: bool) -> None:
    assert verify(answer, prompt(expected, "contains")) is verdict


def test_final_answer_is_the_text_of_a_last_message_without_calls() -> None:
    question = {"role": "user", "content": "q"}
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert final_answer([question, {"role": "assistant", "content": "a"}]) == "a"
    assert final_answer([question, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]) == "a"
    assert final_answer([question, {"role": "assistant", "content": "a", "tool_calls": calls}]) is None
    assert final_answer([{"role": "assistant", "content": "a"}, question]) is None
    assert final_answer([question, {"role": "assistant", "content": " \n"}]) is None
    assert final_answer([question, {"role": "assistant", "content": None}]) is None
    assert final_answer([]) is None


@pytest.mark.parametrize(
    ("stop_reason", "verdict"),
    [
        (StopReason.ANSWERED, True),
        (StopReason.LENGTH, False),
        (StopReason.MAX_TURNS, False),
        (StopReason.CONTEXT_OVERFLOW, False),
        (StopReason.BUDGET, False),
        (StopReason.INVALID, False),
        (StopReason.ERROR, None),
        (StopReason.TIMEOUT, None),
        (StopReason.CONTENT_FILTER, None),
    ],
)
def test_only_the_model_itself_can_be_wrong(
    make_trajectory: Callable[..., Trajectory], stop_reason: StopReason, verdict: bool | None
) -> None:
    assert verify_trajectory(make_trajectory(stop_reason=stop_reason), prompt("5")) is verdict


def test_answer_in_the_prompt_itself_is_not_the_models(make_trajectory: Callable[..., Trajectory]) -> None:
    error: ErrorRecord = {"kind": "permanent", "message": "x"}
    trajectory = make_trajectory(turns=[], error=error)
    assert verify_trajectory(trajectory, prompt("5")) is False
    assert verify_trajectory(trajectory, None) is None
