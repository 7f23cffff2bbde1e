import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.report.page import render_page, write_report
from stillhouse.dataset.report.samples import draw_samples
from stillhouse.dataset.report.summary import summarise
from tests.stillhouse.report.html_page import Page

_SECTIONS = ["funnel", "accuracy", "distributions", "kinds", "duplicates", "contamination", "usage", "lineage"]


def page_of(folder: Path, origin: Origin, *, num_repeated: int = 0) -> str:
    return render_page(summarise(folder, num_repeated=num_repeated), origin, draw_samples(folder))


@pytest.fixture(scope="module")
def full_page(realistic: Path, origin: Origin) -> str:
    return page_of(realistic, origin, num_repeated=12)


def test_a_page_has_all_sections_and_twenty_rows_of_each_kind(full_page: str) -> None:
    page = Page(full_page)
    assert set(_SECTIONS) | {"kept", "dropped"} <= set(page.ids)
    assert full_page.count('<details class="row">') == 20 + 20 + 10 + 10
    assert page.tags["svg"] > 10
    assert "20 dropped rows, drawn at random" in page.texts


def test_nothing_is_fetched_and_every_reference_stays_on_the_page(full_page: str) -> None:
    page = Page(full_page)
    assert page.tags["script"] == page.tags["iframe"] == page.tags["img"] == 0
    assert page.handlers == []
    assert [name for name, times in Counter(page.ids).items() if times > 1] == []
    targets = re.findall(r"url\(([^)]*)\)", full_page) + [one for one in page.references if one != "data:,"]
    assert {target.removeprefix("#") for target in targets} <= set(page.ids)
    assert all(target.startswith("#") for target in targets)
    assert "@import" not in full_page


def test_the_funnel_tells_rows_and_tokens(data: Any, origin: Origin) -> None:
    rows = [
        data.kept(1, num_tokens=300, completion_tokens=20),
        data.dropped(2, "wrong", num_tokens=100, completion_tokens=5),
    ]
    page = Page(page_of(data.write(rows), origin, num_repeated=3))
    assert page.row("Rollouts") == ["Rollouts", "5"]
    assert page.row("Distinct") == ["Distinct", "3", "2", "400", "25"]
    assert page.row("Not wrong") == ["Not wrong", "1", "1", "300", "20"]
    assert page.row("Kept")[:4] == ["Kept", "1", "300", "20"]
    assert not any(row and row[0] == "Short enough" for row in page.rows)


def test_accuracy_is_told_by_tag_with_its_interval(data: Any, origin: Origin) -> None:
    rows = [data.kept(number, tag="sums", verified=True, verifier="numeric") for number in range(10)]
    page = Page(page_of(data.write(rows), origin))
    assert page.row("sums")[:4] == ["sums", "100.0\u202f%", "72.2\u2013100.0\u202f%", "10"]
    assert page.row("numeric")[:4] == ["numeric", "10", "0", "0"]


def test_of_many_tags_the_frequent_ones_are_listed(data: Any, origin: Origin) -> None:
    tags = [f"rare {number}" for number in range(60)] + ["common"] * 2
    rows = [data.kept(number, tag=tag, verified=True) for number, tag in enumerate(tags)]
    page = Page(page_of(data.write(rows), origin))
    assert page.row("common")[3] == "2"
    assert "21 more tags, none of them with more rows, are not listed." in page.texts


def test_a_hit_names_its_match(data: Any, origin: Origin) -> None:
    overlap = {"set": "gsm8k", "row": 7, "part": "prompt", "ngram": 8, "text": "a b c d e f g h"}
    near = {"duplicate_of": "f" * 64, "duplicate_kind": "near", "duplicate_similarity": 0.912, "duplicate_source": "y1"}
    rows = [data.kept(1, contamination=[overlap]), data.dropped(2, "near_duplicate", **near)]
    page = Page(page_of(data.write(rows), origin))
    assert "gsm8k row 7, prompt: \u201ca b c d e f g h\u201d" in page.texts
    assert "repeats row ffffffffffff of y1 (near, similarity 0.91)" in page.texts
    assert page.row("gsm8k")[:4] == ["gsm8k", "8", "1", "0"]
    assert page.row("near")[:4] == ["near", "y1", "0", "1"]


def test_what_was_not_measured_is_said_and_not_zero(data: Any, origin: Origin) -> None:
    nothing = replace(origin, student=None, max_tokens=None, price=None)
    page = Page(page_of(data.write([data.kept(number) for number in range(3)]), nothing))
    assert set(_SECTIONS) <= set(page.ids)
    assert page.tags["svg"] == 1
    assert "No answer is verified: no prompt came with something to compare with." in page.texts
    assert "No row repeats another one." in page.texts
    assert page.row("Cost")[:6] == ["Cost", "\u2013", "\u2013", "$0.00", "\u2013", "3"]
    assert "A dash is an unknown number, not a zero." in page.texts
    assert "Student tokens kept" not in page.texts
    assert "none: dataset.labels.render is off" in page.texts
    assert page.row("Distinct") == ["Distinct", "3"]


def test_a_dataset_without_a_kept_row_has_a_page(data: Any, origin: Origin) -> None:
    page = Page(page_of(data.write([data.dropped(1, "wrong")]), origin))
    assert "0 rows from teacher" in page.texts
    assert "kept" not in page.ids


_TEXTS = (
    *("tag", "language", "teacher", "sampling", "verifier", "verification", "expected_answer", "refusal"),
    "compared",
    *("format_problem", "template_problem", "duplicate_of", "duplicate_kind", "duplicate_source"),
)
ATTACK = "</script></style></title><script>document.title='owned'</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"


def test_markup_in_rows_is_text_wherever_it_stands(data: Any, origin: Origin) -> None:
    call = {"id": "c", "type": "function", "function": {"name": ATTACK, "arguments": {ATTACK: ATTACK}}}
    texts = dict.fromkeys(_TEXTS, ATTACK)
    overlap = {"set": ATTACK, "row": 7, "part": ATTACK, "ngram": 8, "text": ATTACK}
    attacked = {
        **texts,
        "verified": True,
        "messages": [
            {"role": "user", "content": ATTACK},
            {"role": "assistant", "content": ATTACK, "reasoning": ATTACK, "tool_calls": [call]},
            {"role": "tool", "content": [{"type": "text", "text": ATTACK}]},
        ],
        "num_tool_calls": 1,
        "providers": [ATTACK],
        "private_data": [ATTACK],
        "objections": [ATTACK],
        "scores": {ATTACK: 1.0},
        "judge": {"scores": {ATTACK: 0.5}, "explanation": ATTACK},
        "contamination": [overlap],
        "error": {"kind": ATTACK, "message": ATTACK},
    }
    rows = [data.kept(1, **attacked), data.dropped(2, "wrong", **(attacked | {"scores": {ATTACK: 2.0}}))]
    html = page_of(data.write(rows), replace(origin, student=ATTACK, lineage={ATTACK: ATTACK}))
    page = Page(html)
    assert page.tags["script"] == page.tags["img"] == 0
    assert page.handlers == []
    assert (page.tags["style"], page.tags["title"]) == (1, 1)
    assert ATTACK in page.texts


def test_a_huge_row_is_cut_and_says_so(data: Any, origin: Origin) -> None:
    huge = "x" * 2_000_000
    messages = [{"role": "user", "content": huge}, *({"role": "assistant", "content": huge} for _ in range(9))]
    attacked = {"messages": messages, "tag": huge, "expected_answer": huge, "teacher": huge, "scores": {huge: 1.0}}
    html = page_of(data.write([data.kept(1, **attacked), data.kept(2, scores={huge: 2.0})]), origin)
    assert len(html) < 200_000
    assert "more characters]" in html


def test_what_no_browser_can_show_is_replaced(data: Any, origin: Origin) -> None:
    odd = "lone \ud800 surrogate, bell \x07, \u202ereversed, \u0627\u0644"
    messages = [{"role": "user", "content": odd}]
    html = page_of(data.write([data.kept(1, messages=messages)]), origin)
    html.encode("utf-8")
    assert "lone \ufffd surrogate, bell \ufffd, \u202ereversed, \u0627\u0644" in html


def test_card_and_page_are_beside_the_files(realistic: Path, origin: Origin, full_page: str, tmp_path: Path) -> None:
    for file in realistic.glob("*.parquet"):
        (tmp_path / file.name).symlink_to(file)
    write_report(tmp_path, summarise(tmp_path, num_repeated=12), origin)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == full_page
    assert (tmp_path / "README.md").read_text(encoding="utf-8").startswith("---\nconfigs:\n")
