"""Graded pairs of answers: verdicts against the truth, as docs/reference/verdicts.md shows them.

`python -m tests.stillhouse.verification.test_graded_pairs` prints the table and every pair that is not as it should be.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stillhouse.types import PromptMetadata
from stillhouse.verification import verify

PAIRS = Path(__file__).with_name("graded_pairs.jsonl")
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "verdicts.md"
VERDICTS = (True, False, None)


def graded_pairs() -> list[tuple[dict[str, Any], bool | None]]:
    pairs = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    return [
        (
            pair,
            verify(pair["answer"], PromptMetadata("p", pair["expected"], None, pair["verifier"], pair.get("meta", {}))),
        )
        for pair in pairs
    ]


def table_of(graded: list[tuple[dict[str, Any], bool | None]]) -> list[str]:
    """The rows of the confusion matrix: for each verifier the verdicts on right, wrong and undecided answers."""
    counts = Counter((pair["verifier"], pair["right"], verdict) for pair, verdict in graded)
    verifiers = sorted({pair["verifier"] for pair, _ in graded})
    rows = {
        verifier: [counts[verifier, right, verdict] for right in VERDICTS for verdict in VERDICTS]
        for verifier in verifiers
    }
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    return [f"| {name} | {' | '.join(map(str, row))} |" for name, row in rows.items()]


@pytest.fixture(scope="module")
def graded() -> list[tuple[dict[str, Any], bool | None]]:
    return graded_pairs()


def test_no_wrong_answer_is_called_right(graded) -> None:
    assert [pair for pair, verdict in graded if verdict is True and pair["right"] is not True] == []


def test_no_right_answer_is_called_wrong(graded) -> None:
    assert [pair for pair, verdict in graded if verdict is False and pair["right"] is True] == []


def test_the_docs_show_the_confusion_matrix(graded) -> None:
    assert len(graded) >= 200
    page = PAGE.read_text(encoding="utf-8")
    assert [row for row in table_of(graded) if row not in page] == []


if __name__ == "__main__":
    results = graded_pairs()
    print(*table_of(results), sep="\n")
    for graded_pair, verdict_of_it in results:
        if verdict_of_it != graded_pair["right"]:
            print(verdict_of_it, graded_pair)
