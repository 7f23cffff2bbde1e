"""Sends to MLflow what it did not take: the records of the fallback file, run by run as they were made."""

import fcntl
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from stillhouse.errors import TrackingError
from stillhouse.store.atomic import write_atomic
from stillhouse.tracking.client import connect, experiment_id
from stillhouse.tracking.fallback import FALLBACK_FILE, is_refusal, is_sent
from stillhouse.tracking.records import SENDERS
from stillhouse.types import JsonObject

_SENDING_FILE: Final = "tracking-fallback.sending.jsonl"
"""The records that are being sent; runs append to a new fallback file meanwhile."""
_LOCK_FILE: Final = "tracking-fallback.lock"
_UNSENT_TAG: Final = "stillhouse.unsent_id"
"""Id of a run before MLflow had it, so that it is created once however often sending is broken off."""


@dataclass(slots=True)
class Sent:
    by_kind: Counter[str] = field(default_factory=Counter)
    """Records that MLflow has now."""
    left: Counter[str] = field(default_factory=Counter)
    """Records that stay in the fallback file, by reason."""


def send_fallback(folder: Path) -> Sent:
    """Send the records of the fallback file in `folder`, each to the tracking URI it was meant for.

    Call it again after an interruption: it goes on behind the last record that was sent. Raises TrackingError if MLflow
    cannot be reached, or another process is sending them; nothing is lost.
    """
    if not any((folder / name).exists() for name in (FALLBACK_FILE, _SENDING_FILE)):
        return Sent()
    with (folder / _LOCK_FILE).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrackingError(
                f"{folder}: another process is sending these records to MLflow; wait until it has ended"
            ) from None
        return _send_all(folder)


def _send_all(folder: Path) -> Sent:
    sending, place = folder / _SENDING_FILE, folder / f"{_SENDING_FILE}.done"
    if not sending.exists():
        if not (folder / FALLBACK_FILE).exists():
            return Sent()
        # Left by an end between the two removals below, it would skip records of the new file.
        place.unlink(missing_ok=True)
        (folder / FALLBACK_FILE).replace(sending)
    done = int(place.read_text()) if place.exists() else 0
    sent, runs = Sent(), _Runs()
    with sending.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number < done:
                continue
            line = _moved(line, folder)
            kind, reason = _send(line, runs)
            if reason is None:
                sent.by_kind[kind] += 1
            else:
                sent.left[reason] += 1
                with (folder / FALLBACK_FILE).open("a", encoding="utf-8") as file:
                    # The line of a killed process may have no end.
                    file.write(line.rstrip("\n") + "\n")
            write_atomic(place, str(number + 1).encode())
    sending.unlink()
    place.unlink(missing_ok=True)
    return sent


def _moved(line: str, folder: Path) -> str:
    """Return a line with the paths of its store as they are since the store was moved to `folder`."""
    with suppress(ValueError, KeyError):
        was, here = json.loads(line)["store"], f"{folder.absolute()}/"
        for form in (lambda path: json.dumps(path)[1:-1], quote):
            line = line.replace(form(was), form(here))
    return line


def _send(line: str, runs: "_Runs") -> tuple[str, str | None]:
    """Send one record; return its kind, and why it could not be sent."""
    try:
        record = json.loads(line)
        kind, uri, run_id = record["kind"], record["uri"], record["run_id"]
    except (ValueError, KeyError) as error:
        return "", f"a line that cannot be read: {error}"
    if kind == "status" and record.get("status") not in ("FINISHED", "FAILED", "KILLED"):
        return kind, None
    try:
        client = connect(uri)
        if kind == "run":
            runs.create(client, record)
        elif kind not in SENDERS or run_id is None:
            return kind, f"{kind}: to be asked again by the next run"
        else:
            record = runs.with_ids(client, line, run_id)
            SENDERS[kind](client, record["run_id"], record)
    except (OSError, KeyError) as error:
        return kind, f"{kind}: {type(error).__name__}: {error}"
    except Exception as error:
        if is_refusal(error):
            return kind, f"{kind}: {error}"
        raise TrackingError(
            f"MLflow at {uri} did not take a record of run {record['run']!r}: {type(error).__name__}: {error}. The "
            "records are kept; start MLflow and run this command again"
        ) from error
    return kind, None


class _Runs:
    """Runs that MLflow got late, by the id that they had before."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def create(self, client: Any, record: JsonObject) -> None:
        """Create the run of a record, unless an earlier attempt has."""
        unsent = record["run_id"]
        experiment = experiment_id(client, record["experiment"], record["location"])
        if not self._knows(client, unsent, [experiment]):
            tags = {key: self._ids.get(value, value) for key, value in record["tags"].items()} | {_UNSENT_TAG: unsent}
            start = record["start_time"] or int(record["time"] * 1000)
            run = client.create_run(experiment, start_time=start, tags=tags, run_name=record["run"])
            self._ids[unsent] = run.info.run_id

    def with_ids(self, client: Any, line: str, run_id: str) -> JsonObject:
        """Return the record of a line with the ids that MLflow gave; raise KeyError if it never had the run."""
        if not is_sent(run_id) and run_id not in self._ids:
            experiments = [experiment.experiment_id for experiment in client.search_experiments()]
            if not self._knows(client, run_id, experiments):
                raise KeyError(f"run {run_id} was never recorded")
        for unsent, sent in self._ids.items():
            line = line.replace(unsent, sent)
        record: JsonObject = json.loads(line)
        return record

    def _knows(self, client: Any, unsent: str, experiments: list[str]) -> bool:
        if unsent not in self._ids:
            for run in client.search_runs(experiments, f"tags.`{_UNSENT_TAG}` = '{unsent}'", max_results=1):
                self._ids[unsent] = run.info.run_id
        return unsent in self._ids
