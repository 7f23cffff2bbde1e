import json
import logging
from pathlib import Path

import pytest

from stillhouse.tracking.fallback import FALLBACK_FILE, RETRY_AFTER_S, Fallback, Outage


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Counts calls; answers only while up."""

    def __init__(self) -> None:
        self.up = False
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if not self.up:
            raise ConnectionError("refused")
        return "ok"


def test_a_dead_server_is_left_alone_for_a_while_and_then_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, server = Clock(), Server()
    fallback = Fallback(tmp_path, "http://tracker", Outage(clock))

    def attempt() -> str | None:
        return fallback.attempt(server, {"run_id": "r"}, "metrics", {"at": clock.now})

    assert attempt() is None
    clock.now = RETRY_AFTER_S - 1
    assert attempt() is None
    assert server.calls == 1
    clock.now = RETRY_AFTER_S + 1
    assert attempt() is None
    assert server.calls == 2
    server.up = True
    clock.now = 3 * RETRY_AFTER_S
    assert attempt() == "ok"
    lines = [json.loads(line) for line in (tmp_path / FALLBACK_FILE).read_text(encoding="utf-8").splitlines()]
    assert [line["at"] for line in lines] == [0.0, RETRY_AFTER_S - 1, RETRY_AFTER_S + 1]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_what_must_not_wait_is_tried_during_an_outage(tmp_path: Path) -> None:
    clock, server = Clock(), Server()
    fallback = Fallback(tmp_path, "http://tracker", Outage(clock))
    fallback.attempt(server, {}, "metrics", {})
    server.up = True
    assert fallback.attempt(server, {}, "status", {}, insist=True) == "ok"
    assert fallback.attempt(server, {}, "metrics", {}) == "ok"
