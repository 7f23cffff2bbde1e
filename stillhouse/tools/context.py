"""What surrounds a call: whose it is, what a tool may know of that, and what a rollout keeps between its calls."""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from stillhouse.types import JsonObject

_LOG = logging.getLogger(__name__)


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
        """Closes what was kept, the last made first."""
        kept, self._kept = list(self._kept.values()), {}
        await close_all(reversed(kept))


async def close_all(things: Iterable[Closing]) -> None:
    """Closes each of them. One that fails is logged: the work it served is done, and the others must not stay open."""
    for thing in things:
        try:
            await thing.close()
        except Exception as error:
            _LOG.warning("tools: %s did not close: %s: %s", type(thing).__name__, type(error).__name__, error)
