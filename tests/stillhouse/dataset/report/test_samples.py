import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stillhouse.dataset.report.samples import draw_samples

Row = dict[str, Any]


def ids(rows: Iterable[Row]) -> list[str]:
    return [row["id"] for row in rows]


def test_twenty_kept_and_twenty_dropped_rows_are_drawn(realistic: Path, realistic_rows: list[Row]) -> None:
    samples = draw_samples(realistic)
    by_id = {row["id"]: row for row in realistic_rows}
    assert (len(samples.kept), len(samples.dropped)) == (20, 20)
    for row in (*samples.kept, *samples.dropped):
        assert {name: by_id[row["id"]][name] for name in row} == row
    assert all(row["split"] for row in samples.kept)
    assert all(row["drop_reasons"] for row in samples.dropped)


def test_the_choice_does_not_depend_on_the_order_of_rows(data: Any, realistic: Path, realistic_rows: list[Row]) -> None:
    shuffled = random.Random(1).sample(realistic_rows, len(realistic_rows))
    assert draw_samples(data.write(shuffled)) == draw_samples(realistic)


def test_added_rows_change_no_other_choice(data: Any, realistic: Path, realistic_rows: list[Row]) -> None:
    half = draw_samples(data.write(realistic_rows[:1000]))
    both = draw_samples(realistic)
    of_half = {row["id"] for row in realistic_rows[:1000]}
    assert [name for name in ids(both.kept) if name in of_half] == [n for n in ids(half.kept) if n in ids(both.kept)]


def test_a_duplicate_comes_with_the_row_it_repeats_wherever_that_is(data: Any) -> None:
    original, other = data.kept(1, split="validation"), data.dropped(5, "wrong")
    repeats = {"duplicate_kind": "exact", "duplicate_similarity": 1.0}
    rows = [
        original,
        other,
        data.dropped(2, "duplicate", duplicate_of=original["id"], **repeats),
        data.dropped(3, "duplicate", duplicate_of=other["id"], **repeats),
        data.dropped(4, "duplicate", duplicate_of="far away", duplicate_source="last year", **repeats),
    ]
    drawn = draw_samples(data.write(rows)).duplicates
    assert {row["id"][-1]: first and first["id"][-1] for row, first in drawn} == {
        "2": "1",
        "3": "5",
        "4": None,
    }


def test_rows_that_overlap_with_an_evaluation_set_are_shown(data: Any) -> None:
    overlap = {"set": "gsm8k", "row": 7, "part": "prompt", "ngram": 8, "text": "a b c d e f g h"}
    rows = [data.kept(1, contamination=[overlap]), data.kept(2, contamination=[]), data.kept(3)]
    (row,) = draw_samples(data.write(rows)).contaminated
    assert row["contamination"] == [overlap]
