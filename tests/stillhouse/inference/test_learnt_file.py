import logging
from pathlib import Path

import orjson
import pytest

from stillhouse.inference.learnt_file import LearntFile
from stillhouse.inference.rate_limit.values import LearntLimits

LEARNT = LearntLimits(in_flight=24, requests_per_second=10.0)


def memory(path: Path, name: str = "a", at: float = 1000.0) -> LearntFile[LearntLimits]:
    return LearntFile(path, name, LearntLimits, 6 * 3600.0, wall_clock=lambda: at)


def test_what_was_learnt_of_each_endpoint_comes_back_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "store" / "limits.json"
    memory(path, "a").save(LEARNT)
    memory(path, "b").save(LearntLimits(in_flight=3))
    assert memory(path, "a", at=2000.0).load() == LEARNT
    assert memory(path, "b").load() == LearntLimits(in_flight=3)
    assert memory(path, "c").load() is None
    # What is old or of the future is forgotten.
    assert [memory(path, "a", at=at).load() for at in (1000.0 + 7 * 3600, 10.0)] == [None, None]


def test_a_file_does_not_grow_by_endpoints_that_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    for number in range(5):
        memory(path, str(number), at=1000.0 + number * 4 * 3600).save(LEARNT)
    assert sorted(orjson.loads(path.read_bytes())) == ["3", "4"]


@pytest.mark.parametrize(
    "written",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        orjson.dumps({"a": {"learnt": {}}}),
        orjson.dumps({"a": {"saved_at": 1000.0}}),
        orjson.dumps({"a": {"saved_at": 1000.0, "learnt": {"unknown": 1}}}),
        orjson.dumps({"a": {"saved_at": "noon", "learnt": {}}}),
        orjson.dumps({"a": {"saved_at": 1000.0, "learnt": {"in_flight": "many"}}}),
        orjson.dumps({"a": {"saved_at": 1000.0, "learnt": {"requests_per_second": -1.0}}}),
    ],
)
def test_malformed_files_are_ignored_with_a_log(
    tmp_path: Path, written: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "limits.json").write_bytes(written)
    with caplog.at_level(logging.WARNING):
        assert memory(tmp_path / "limits.json").load() is None
    assert "limits.json" in caplog.text


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        memory(tmp_path / "file" / "limits.json").save(LEARNT)
    assert "could not be kept" in caplog.text
