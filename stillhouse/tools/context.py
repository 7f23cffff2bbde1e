"""What surrounds a call: whose it is, what a tool may know of that, and what a rollout keeps between its calls."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from stillhouse.types import JsonObject


class ToolError(Exception):
    """Raised by a tool to tell the model what went wrong in just these words, without the name of an exception."""


class Closing(Protocol):
    """Something opened by the first call that needs it: a browser, the session of an MCP server."""

    async def close(self) -> None:
        """Ends it; called once, in any event loop."""


C = TypeVar("C", bound=Closing)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Whose calls these are; the defaults are for calls that belong to no rollout."""

    rollout_key: str = ""
    prompt_id: str = ""
    sample_index: int = 0
    metadata: JsonObject = field(default_factory=dict)
    """The metadata of the prompt's row, as it was."""


@dataclass(frozen=True, slots=True)
class ToolArgs:
    """What a tool is told beside its arguments: a parameter annotated `ToolArgs` gets it, and no model sees it."""

    metadata: JsonObject = field(default_factory=dict)
    """The metadata of the prompt's row, as it was."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that `tools.environment` names, where they are set."""
    rollout_key: str = ""
    prompt_id: str = ""
    sample_index: int = 0


class RolloutScope:
    """What one rollout keeps between its calls and loses at its end.

    Args:
        context: whose rollout it is.
    """

    def __init__(self, context: ToolContext) -> None:
        self.context = context
        self._kept: dict[Hashable, Any] = {}

    def keep(self, owner: Hashable, make: Callable[[], C]) -> C:
        """The rollout's object of `owner`, made by the first call that asks for it.

        `make` returns at once; what takes time (connecting) happens in the object's own methods. Two calls of one turn
        thus share one object, however they interleave.
        """
        if owner not in self._kept:
            self._kept[owner] = make()
        return self._kept[owner]

    async def close(self) -> None:
        """Closes what was kept, the last made first; the first error is raised once all are closed."""
        errors = []
        while self._kept:
            _, kept = self._kept.popitem()
            try:
                await kept.close()
            # Closing is the last thing that happens to it: whatever fails must not leave another one open.
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
