"""Fallback for failed MLflow calls: the record is appended to a file and the run continues."""

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from stillhouse.types import JsonObject

_logger = logging.getLogger(__name__)

FALLBACK_FILE = "tracking-fallback.jsonl"

RETRY_AFTER_S = 60.0
"""Pause after a failed call: a long run survives a restart of the server, and a dead one costs seconds a minute."""

_REFUSALS = {
    *("BAD_REQUEST", "INVALID_PARAMETER_VALUE", "PERMISSION_DENIED"),
    *("RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"),
}
"""Error codes that concern one record only; they do not begin an outage."""

_LOCKED_OUT = {"UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED", "ENDPOINT_NOT_FOUND"}

_UNSENT = "unsent-"

Answer = TypeVar("Answer")


def unsent_id() -> str:
    """Return an id for a run that MLflow did not start; its records bear it until they are sent."""
    return f"{_UNSENT}{uuid4().hex}"


def is_sent(run_id: str | None) -> bool:
    """Return whether a run of this id is in MLflow."""
    return run_id is not None and not run_id.startswith(_UNSENT)


@dataclass
class Outage:
    """State of an unreachable tracking URI, shared by all runs of a process."""

    clock: Callable[[], float]
    """Monotonic seconds."""
    until: float = float("-inf")
    reported: bool = False
    """Whether the user was warned; cleared when the server answers again."""

    @property
    def lasts(self) -> bool:
        return self.clock() < self.until


@cache
def outage_of(uri: str) -> Outage:
    return Outage(time.monotonic)


class Fallback:
    """Calls MLflow; appends the record to a file of JSON lines in `folder` if a call fails.

    Many processes may append to the file. The outage's state is shared by all runs at the URI in this process.
    """

    def __init__(self, folder: Path, uri: str, outage: Outage | None = None) -> None:
        self._path = folder / FALLBACK_FILE
        self._uri = uri
        self._outage = outage or outage_of(uri)

    def attempt(
        self, call: Callable[[], Answer], run: JsonObject, kind: str, record: JsonObject, *, insist: bool = False
    ) -> Answer | None:
        """Return the result of `call`, tried during an outage if we `insist`; None if `record` was written instead.

        The line names `run`, its id and name, and the `kind` of record, for instance `metrics`.
        """
        if self._outage.lasts and not insist:
            self.write(run, kind, record)
            return None
        try:
            answer = call()
        # Whatever the tracker, its database driver or HTTP stack raises, the run continues.
        except Exception as error:
            self._failed(error, kind)
            self.write(run, kind, record)
            return None
        self._outage.until, self._outage.reported = float("-inf"), False
        return answer

    def write(self, run: JsonObject, kind: str, record: JsonObject) -> None:
        """Append one line; drop it when even this file cannot be written."""
        about = {"time": time.time(), "uri": self._uri, "store": f"{self._path.parent.absolute()}/"}
        line = json.dumps({**about, **run, "kind": kind, **record}, default=str)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            _logger.debug("%s: cannot be written: %s; dropped %s", self._path, error, line)

    def ended_runs(self) -> dict[str, str]:
        """Return final states, by run id, that could not be reported to MLflow."""
        states: dict[str, str] = {}
        with suppress(FileNotFoundError), self._path.open(encoding="utf-8") as lines:
            for line in lines:
                # Most lines are metrics, and the last line of a killed process may be cut.
                with suppress(ValueError, KeyError):
                    if '"kind": "status"' in line and is_sent((entry := json.loads(line))["run_id"]):
                        states[entry["run_id"]] = entry["status"]
        return states

    def _failed(self, error: Exception, kind: str) -> None:
        if is_refusal(error):
            _logger.warning("MLflow refused %s: %s. The run goes on; see %s", kind, brief(error), self._path)
            return
        self._outage.until = self._outage.clock() + RETRY_AFTER_S
        if not self._outage.reported:
            self._outage.reported = True
            _logger.warning(
                "MLflow at %s did not take %s: %s. The run goes on; what is not recorded there is kept in %s, and "
                "`stillhouse send-tracking --store %s` sends it",
                *(self._uri, kind, brief(error), self._path, self._path.parent),
            )


def is_refusal(error: Exception) -> bool:
    """Return whether an error concerns the record that was sent, and no other."""
    # A server before 3.4 takes no traces, and says so by another error.
    return isinstance(error, NotImplementedError) or getattr(error, "error_code", None) in _REFUSALS


def is_answer(error: Exception, uri: str) -> bool:
    """Return whether the tracker answered with this error, so that no outage excuses it; a file always does."""
    return uri.startswith("sqlite") or is_refusal(error) or getattr(error, "error_code", None) in _LOCKED_OUT


def brief(error: Exception) -> str:
    """Return an error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
