import base64
import gzip
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from stillhouse.errors import InputError, StoreError
from stillhouse.report.view.page import COLUMNS, write_page
from stillhouse.report.view.rows import ViewRow
from stillhouse.types import Trajectory

Make = Callable[..., Trajectory]


def _row(index: int, text: str = "") -> ViewRow:
    return ViewRow(
        stage="",
        outcome="right",
        kept=None,
        score=1.0,
        figures={"turns": 1, "tool_calls": 0, "tool_errors": 0, "completion_tokens": 1, "usd": None, "latency_s": 0.5},
        body={
            "id": f"r{index}",
            "messages": [{"role": "user", "content": f"q{index}"}, {"role": "assistant", "content": text}],
            "turns": [{"finish_reason": "stop"}],
            "stop_reason": "answered",
            "model": "m",
            "tag": None,
        },
    )


def _blocks(html: str) -> dict[str, Any]:
    blocks = re.findall(r'<script type="application/gzip" id="([^"]+)">([^<]*)</script>', html)
    return {name: orjson.loads(gzip.decompress(base64.b64decode(packed))) for name, packed in blocks}


def test_every_row_is_in_the_index_and_where_the_index_says(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    written = write_page(path, "t", "p", (_row(index, "word " * 4000) for index in range(200)), 1000)
    assert (written.num_rows, written.is_complete) == (200, True)
    blocks = _blocks(path.read_text(encoding="utf-8"))
    index = [dict(zip(COLUMNS, line, strict=True)) for line in blocks.pop("index")]
    assert len(blocks) > 10
    assert [line["id"] for line in index] == [f"r{number}" for number in range(200)]
    for line in index:
        body = blocks[f"chunk-{line['chunk']}"][line["place"]]
        assert body["id"] == line["id"]
        assert body["turns"] == [{"finish_reason": "stop"}]
        assert body["num_turns"] == line["turns"] == 1


def _html(path: Path, num_rows: int, max_rows: int, title: str = "t", place: str = "p") -> str:
    write_page(path, title, place, map(_row, range(num_rows)), max_rows)
    return path.read_text(encoding="utf-8")


def test_rows_beyond_the_most_asked_for_are_left_out_and_the_page_says_so(tmp_path: Path) -> None:
    page = write_page(tmp_path / "page.html", "t", "p", map(_row, range(6)), 5)
    assert (page.num_rows, page.is_complete) == (5, False)
    assert "The first 5 only; raise --max-rows" in page.path.read_text(encoding="utf-8")
    assert "--max-rows" not in _html(tmp_path / "page.html", 5, 5)


def test_the_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    html = _html(tmp_path / "page.html", 1, 5)
    assert re.findall(r"https?://|url\(|@import|\bfetch\(|XMLHttpRequest|<link[^>]+href=\"(?!data:,)", html) == []
    assert "default-src 'none'" in html


def test_a_title_is_text(tmp_path: Path) -> None:
    html = _html(tmp_path / "page.html", 0, 5, "</title><script>x()</script>", "<b>")
    assert "<script>x()" not in html
    assert "<b>" not in html


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    assert _html(tmp_path / "a", 50, 100) == _html(tmp_path / "b", 50, 100)


def test_memory_does_not_follow_the_number_of_rows(tmp_path: Path) -> None:
    text = "".join(map(str, range(4000)))

    def peak(num_rows: int) -> int:
        tracemalloc.start()
        write_page(tmp_path / "page.html", "t", "p", (_row(index, text) for index in range(num_rows)), num_rows)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)
    few, many = peak(100), peak(2000)
    # 1,900 rows more are 28 MB more.
    assert many - few < 2e6


def test_a_page_that_cannot_be_finished_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")

    def broken() -> Iterator[ViewRow]:
        yield _row(0)
        raise InputError("torn")

    with pytest.raises(InputError, match="torn"):
        write_page(path, "t", "p", broken(), 5)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="written"):
        write_page(tmp_path / "file" / "page.html", "t", "p", [], 5)
