"""What happens to a record that MLflow does not take: it goes to a file, and the run goes on."""

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from stillhouse.types import JsonObject

_logger = logging.getLogger(__name__)

FALLBACK_FILE = "tracking-fallback.jsonl"

RETRY_AFTER_S = 60.0
"""How long an unreachable server is left alone: a run of hours survives a restart of the server, and a dead server
costs a run a few seconds a minute at most."""

_REFUSALS = {
    "BAD_REQUEST",
    "INVALID_PARAMETER_VALUE",
    "PERMISSION_DENIED",
    "RESOURCE_ALREADY_EXISTS",
    "RESOURCE_DOES_NOT_EXIST",
}
"""MLflow's error codes that concern one record; after them the server is still asked for the next one."""

Answer = TypeVar("Answer")


class Outage:
    """Whether a tracking URI is to be left alone for now; one per URI, so that all runs of a process share it.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = float("-inf")
        self.reported = False
        """Whether the user has been told; cleared when the server answers again."""

    @property
    def lasts(self) -> bool:
        """Whether calls are held back."""
        return self._clock() < self._until

    def begin(self) -> None:
        """A call found nobody: holds calls back for `RETRY_AFTER_S`."""
        self._until = self._clock() + RETRY_AFTER_S

    def end(self) -> None:
        """A call was answered."""
        self._until = float("-inf")
        self.reported = False


@cache
def outage_of(uri: str) -> Outage:
    """The state of `uri` in this process."""
    return Outage(time.monotonic)


class Fallback:
    """Makes calls to MLflow, and appends to a file of JSON lines what they were to record when they fail.

    Args:
        path: the file; many processes may append to it.
        uri: the tracking URI, for messages.
        outage: state shared by all runs at this URI.
        clock: seconds since the epoch, written on each line.
    """

    def __init__(self, path: Path, uri: str, outage: Outage, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._uri = uri
        self._outage = outage
        self._clock = clock

    def attempt(
        self, call: Callable[[], Answer], run: JsonObject, kind: str, record: JsonObject, *, insist: bool = False
    ) -> Answer | None:
        """What `call` returns, or None after it failed and `record` was written to the file.

        Args:
            call: talks to MLflow.
            run: what tells the run (id or name), for the line in the file.
            kind: what is recorded, for instance `metrics`.
            record: the JSON that `call` sends.
            insist: call even during an outage.
        """
        if self._outage.lasts and not insist:
            self.write(run, kind, record)
            return None
        try:
            answer = call()
        # Whatever a tracker, its database driver or its HTTP stack raises, the run it watches goes on.
        except Exception as error:
            self._failed(error, kind)
            self.write(run, kind, record)
            return None
        self._outage.end()
        return answer

    def write(self, run: JsonObject, kind: str, record: JsonObject) -> None:
        """Appends one line; drops it when even this file cannot be written."""
        line = json.dumps({"time": self._clock(), "uri": self._uri, **run, "kind": kind, **record}, default=str)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            _logger.debug("%s: cannot be written: %s; dropped %s", self._path, error, line)

    def ended_runs(self) -> dict[str, str]:
        """The states, by run id, of runs that MLflow was not told of when they ended."""
        states: dict[str, str] = {}
        with suppress(FileNotFoundError), self._path.open(encoding="utf-8") as lines:
            for line in lines:
                # Most of the file are metrics; and the last line of a process that was killed may be cut.
                with suppress(ValueError, KeyError):
                    if '"kind": "status"' in line and (entry := json.loads(line))["run_id"] is not None:
                        states[entry["run_id"]] = entry["status"]
        return states

    def _failed(self, error: Exception, kind: str) -> None:
        if getattr(error, "error_code", None) in _REFUSALS:
            _logger.warning("MLflow refused %s: %s. The run goes on; see %s", kind, _brief(error), self._path)
            return
        self._outage.begin()
        if not self._outage.reported:
            self._outage.reported = True
            _logger.warning(
                "MLflow at %s did not take %s: %s. The run goes on; what is not recorded there is kept in %s",
                self._uri,
                kind,
                _brief(error),
                self._path,
            )


def fallback_in(folder: Path, uri: str) -> Fallback:
    """The fallback whose file lies in `folder`, with the state of `uri` in this process."""
    return Fallback(folder / FALLBACK_FILE, uri, outage_of(uri))


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
