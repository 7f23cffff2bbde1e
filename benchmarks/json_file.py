"""Values that a benchmark and the processes it starts hand each other in files."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self


class JsonFile:
    """A dataclass of plain values that can lie in a file."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Self:
        """What is in the file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        """Writes it to the file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
