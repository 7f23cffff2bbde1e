from pathlib import Path

import pytest

from benchmarks.verdicts import graded, table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "verdicts.md"


@pytest.fixture(scope="module")
def results():
    return graded()


def test_no_wrong_answer_is_called_right(results) -> None:
    assert [pair for pair, verdict in results if verdict is True and pair["right"] is not True] == []


def test_the_docs_show_the_confusion_matrix(results) -> None:
    assert len(results) >= 200
    page = PAGE.read_text(encoding="utf-8")
    assert f"{len(results)} graded answers" in page
    assert [row for row in table(results) if row not in page] == []
