"""A simulated provider in a process of its own, its counts while it serves, and its ledger in figures."""

import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.provider.answers import Service
from tests.provider.provider import Entry


@dataclass(frozen=True, slots=True)
class Second:
    """What happened in one second."""

    served: int = 0
    """Requests that met no limit."""
    refused: int = 0
    tokens: int = 0
    """Of requests that met no limit."""
    busy_s: float = 0.0
    """Seconds of service given, so the mean number of requests in flight."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The ledger in figures."""

    num_requests: int
    num_refused: int
    num_billed: int
    num_distinct_billed: int
    peak_in_flight: int
    first_arrival: float | None
    last_answer: float | None
    """Of what was billed."""
    billed_tokens: int
    by_status: dict[str, int]
    """Answers by status; `none` for what was never answered."""
    refused_by: dict[str, int]
    seconds: list[Second] = field(default_factory=list)
    """From the first arrival on."""


class Stats(NamedTuple):
    """Counts so far."""

    num_requests: int
    num_billed: int
    num_billed_recently: int
    """In the last 50 ms: answers that a client killed now may not have kept yet."""
    num_rejected: int
    in_flight: int
    peak_in_flight: int


class RunningProvider:
    """A provider in another process; its counts are read over HTTP."""

    def __init__(self, url: str) -> None:
        self.url = url

    def stats(self) -> Stats:
        """Counts so far; cheap."""
        return Stats(**self._get("stats"))

    def ledger(self) -> Summary:
        """The ledger summed up."""
        return summarize([Entry(**entry) for entry in self._get("ledger")], self.stats().peak_in_flight)

    def _get(self, page: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/{page}", timeout=60) as answer:
            return json.load(answer)


@contextmanager
def running(service: Service) -> Iterator[RunningProvider]:
    """A provider that serves until the block is left, or this process ends in whatever way."""
    command = [sys.executable, "-m", "tests.provider", "--service", service.model_dump_json()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield RunningProvider(process.stdout.readline().strip())
        process.stdin.close()


def summarize(entries: Sequence[Entry], peak_in_flight: int) -> Summary:
    """The ledger in figures."""
    paid = [entry for entry in entries if entry.billed]
    return Summary(
        num_requests=len(entries),
        num_refused=sum(entry.refused is not None for entry in entries),
        num_billed=len(paid),
        num_distinct_billed=len({entry.digest for entry in paid}),
        peak_in_flight=peak_in_flight,
        first_arrival=entries[0].arrived_at if entries else None,
        last_answer=max((entry.answered_at for entry in paid if entry.answered_at is not None), default=None),
        billed_tokens=sum(entry.tokens for entry in paid),
        by_status=dict(Counter("none" if entry.status is None else str(entry.status) for entry in entries)),
        refused_by=dict(Counter(entry.refused for entry in entries if entry.refused is not None)),
        seconds=_by_second(entries),
    )


def _by_second(entries: Sequence[Entry]) -> list[Second]:
    if not entries:
        return []
    start = entries[0].arrived_at
    end = max(max(entry.arrived_at, entry.answered_at or 0.0) for entry in entries)
    served, refused, tokens, busy_s = ([0.0] * (int(end - start) + 1) for _ in range(4))
    for entry in entries:
        second = int(entry.arrived_at - start)
        if entry.refused is not None:
            refused[second] += 1
            continue
        served[second] += 1
        tokens[second] += entry.tokens
        _add_busy(busy_s, entry.arrived_at - start, (entry.answered_at or end) - start)
    rows = zip(served, refused, tokens, busy_s, strict=True)
    return [Second(int(row[0]), int(row[1]), int(row[2]), row[3]) for row in rows]


def _add_busy(busy_s: list[float], begin: float, end: float) -> None:
    for second in range(int(begin), min(int(end), len(busy_s) - 1) + 1):
        busy_s[second] += min(end, second + 1) - max(begin, second)
