"""What became of everything that was read."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from stillhouse.types import JsonObject

_EXAMPLES: Final = 3


class Example(NamedTuple):
    """One unmapped thing and its place."""

    place: str
    key: str | None
    value: Any


@dataclass(slots=True)
class Reason:
    """Why some things have no place here: how many, and the first of them."""

    leaves_out: bool
    """Whether it costs whole rows."""
    count: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass(slots=True)
class Converted:
    """The account of a conversion: of each row something was written, or it is among `rows_left_out`."""

    form: str
    """Name of the format read."""
    source: str
    files: int = 0
    rows: int = 0
    rows_left_out: int = 0
    """Rows nothing was made of: malformed, failed or empty; each is among `unmapped`."""
    prompts: int = 0
    """Distinct prompts written."""
    repeated_prompts: int = 0
    """Conversations whose prompt had been written before."""
    trajectories: int = 0
    failed: int = 0
    """Rollouts that failed: left out, or among `trajectories` where they were asked for."""
    has_config: bool = False
    unmapped: dict[str, Reason] = field(default_factory=dict)
    """By reason, in the order met."""

    @property
    def num_unmapped(self) -> int:
        """Things that have no place here; `unmapped.jsonl` holds every one."""
        return sum(reason.count for reason in self.unmapped.values())

    def note(self, reason: str, example: Example, *, leaves_out: bool) -> None:
        """Counts one unmapped thing."""
        entry = self.unmapped.setdefault(reason, Reason(leaves_out))
        entry.count += 1
        if len(entry.examples) < _EXAMPLES:
            entry.examples.append(example)

    def as_json(self) -> JsonObject:
        """The figures, for the file that says what the folder is."""
        names = (
            "form",
            "source",
            "files",
            "rows",
            "rows_left_out",
            "prompts",
            "repeated_prompts",
            "trajectories",
            "failed",
        )
        return {name: getattr(self, name) for name in names} | {
            "unmapped": {reason: entry.count for reason, entry in self.unmapped.items()}
        }
