from typing import get_args

import pytest

from stillhouse.config import Verifier
from stillhouse.types import ErrorRecord, Message, PromptMetadata, StopReason
from stillhouse.verification import VerificationResult, examine, examine_trajectory, verify
from stillhouse.verification.verdicts import JUDGE, VERIFIERS

STOPPED, END = "the trajectory stopped", "it came to an answer"
NO_ANSWER = "the last message holds no answer"
OBJECT = {"type": "object"}


def prompt(expected: str | None, verifier: str = "numeric", **metadata: object) -> PromptMetadata:
    return PromptMetadata("p", expected, None, verifier, metadata)


def reply(text: str) -> list[Message]:
    return [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]


def test_every_verifier_of_the_config_exists() -> None:
    assert {*VERIFIERS, JUDGE} == set(get_args(Verifier))


def found(verified: bool | None, verifier: str | None, note: str | None = None, compared: str | None = None):
    return VerificationResult(verified, note, compared, verifier)


@pytest.mark.parametrize(
    ("stop_reason", "verdict"),
    [
        (StopReason.ANSWERED, True),
        (StopReason.LENGTH, False),
        (StopReason.MAX_TURNS, False),
        (StopReason.CONTEXT_OVERFLOW, False),
        (StopReason.BUDGET, False),
        (StopReason.INVALID, False),
        (StopReason.MALFORMED, False),
        (StopReason.ERROR, None),
        (StopReason.TIMEOUT, None),
        (StopReason.CONTENT_FILTER, None),
        (StopReason.UNFINISHED, None),
    ],
)
def test_only_the_model_itself_can_be_wrong(make_trajectory, stop_reason: StopReason, verdict: bool | None) -> None:
    assert examine_trajectory(make_trajectory(stop_reason=stop_reason), prompt("5")).verified is verdict


def test_answer_in_the_prompt_itself_is_not_the_models(make_trajectory) -> None:
    error: ErrorRecord = {"kind": "permanent", "message": "x"}
    trajectory = make_trajectory(turns=[], error=error)
    assert examine_trajectory(trajectory, prompt("5")).verified is False
    assert examine_trajectory(trajectory, None).verified is None


@pytest.mark.parametrize(
    ("messages", "stop_reason", "metadata", "verdict"),
    [
        (reply("5"), StopReason.ANSWERED, prompt("5"), found(True, "numeric", None, "5")),
        (reply("6"), StopReason.ANSWERED, prompt("5"), found(False, "numeric", None, "6")),
        (reply("5"), StopReason.ANSWERED, None, found(None, None)),
        (reply("5"), StopReason.ANSWERED, prompt(None), found(None, "numeric", "no answer is expected")),
        (reply("5"), StopReason.LENGTH, prompt("5", "judge"), found(None, "judge", "left to the judge")),
        (reply("5"), StopReason.ERROR, prompt("5"), found(None, "numeric", "the trajectory stopped for error")),
        (reply("5"), StopReason.LENGTH, prompt("5"), found(False, "numeric", f"{STOPPED} for length before {END}")),
        (reply("<think>5"), StopReason.ANSWERED, prompt("5"), found(False, "numeric", NO_ANSWER)),
        (reply("{}"), StopReason.ANSWERED, prompt(None, "json", answer_schema=OBJECT), found(True, "json", None, "{}")),
    ],
)
def test_verdict_names_its_verifier_and_says_why(
    messages: list[Message], stop_reason: StopReason, metadata: PromptMetadata | None, verdict: VerificationResult
) -> None:
    assert examine(messages, stop_reason, metadata) == verdict


def test_unknown_verifier_leaves_answers_unverified() -> None:
    verdict = examine(reply("5"), StopReason.ANSWERED, prompt("5", "guess"))
    assert verdict.verified is None
    assert verdict.note is not None
    assert "expected a verifier among exact, " in verdict.note
    assert verify("5", prompt("5", "guess")) is None


STRANGE = ["", "\0", "{" * 3000, "[" * 100_000, "\\boxed{" * 3000, "1e999/0", "\ud800", "9" * 9999]


@pytest.mark.parametrize("answer", STRANGE)
@pytest.mark.parametrize("verifier", sorted(VERIFIERS))
def test_no_text_makes_a_verifier_raise(verifier: str, answer: str) -> None:
    expected = {"json": "{}", "regex": "zzz", "python": "assert f()"}.get(verifier, "B")
    assert verify(answer, prompt(expected, verifier)) in (False, None)


@pytest.mark.parametrize(
    ("verifier", "expected", "answer", "compared"),
    [
        ("exact", "Paris", "Lyon? No.\nAnswer: Paris", "Paris"),
        ("normalised", "paris", "The answer is **Paris**", "Paris"),
        ("contains", "Paris", "Answer: in Paris", "in Paris"),
        ("numeric", "5 km", "We add up.\n\\boxed{5000 \\text{ m}}", "5000 meter"),
        ("numeric", "5", "Answer: 2 or 3", "2 or 3"),
        ("math", "x^2", "so it is $x^2$.", "x^2"),
        ("choice", "B", "I choose (B)", "B"),
        ("set", "a, b", "Answer: b, a", "b, a"),
        ("list", "1, 2", "\\boxed{1, 2}", "1, 2"),
        ("regex", "B+", "ABBA", "BB"),
        ("json", "[1]", "Here: [1]", "[1]"),
    ],
)
def test_each_verdict_says_which_text_was_compared(verifier: str, expected: str, answer: str, compared: str) -> None:
    assert examine(reply(answer), StopReason.ANSWERED, prompt(expected, verifier)).compared == compared
