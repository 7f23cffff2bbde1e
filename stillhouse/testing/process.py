"""A simulated provider in a process of its own, and its counts while it serves."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from stillhouse.testing.answers import Service
from stillhouse.testing.ledger import Summary


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
        return Summary.from_json(self._get("ledger"))

    def _get(self, page: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/{page}", timeout=60) as answer:
            return json.load(answer)


@contextmanager
def running(service: Service) -> Iterator[RunningProvider]:
    """A provider that serves until the block is left, or this process ends in whatever way."""
    command = [sys.executable, "-m", "stillhouse.testing", "--service", service.model_dump_json()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield RunningProvider(process.stdout.readline().strip())
        process.stdin.close()
