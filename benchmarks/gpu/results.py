"""The measurements of a plan as JSON files, one for each part, which a later call goes on with."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.plan import PARTS, Part

Status = Literal["measured", "partial", "failed", "unavailable"]
"""`partial` has figures but was cut off; `unavailable` needs something that is not on the machine, such as a peer."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is known of one row."""

    status: Status
    machine: dict[str, Any]
    """Device, versions, commit and scale (`environment.machine`)."""
    figures: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    """Why the row is not `measured`."""
    seconds: float | None = None
    """That the measurement took."""


class Results:
    """The files `PART.json` of a folder.

    Args:
        folder: made when something is written to it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self, part: Part) -> dict[str, Measurement]:
        """Everything known of a part, by name of the row."""
        path = self._path(part)
        if not path.is_file():
            return {}
        return {name: Measurement(**row) for name, row in json.loads(path.read_text(encoding="utf-8")).items()}

    def all(self) -> dict[Part, dict[str, Measurement]]:
        """Everything known, by part."""
        return {part: self.rows(part) for part in PARTS}

    def put(self, part: Part, row: str, measurement: Measurement) -> None:
        """Replaces what is known of a row."""
        rows: Mapping[str, Measurement] = {**self.rows(part), row: measurement}
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({name: asdict(one) for name, one in rows.items()}, indent=1)
        # Not by `stillhouse.store`: `--check` has to run where none of the packages are installed.
        work = self._path(part).with_suffix(".json.tmp")
        work.write_text(f"{text}\n", encoding="utf-8")
        work.replace(self._path(part))

    def _path(self, part: Part) -> Path:
        return self.folder / f"{part}.json"
