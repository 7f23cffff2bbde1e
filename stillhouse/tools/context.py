"""The context of tool calls: the rollout they belong to, what a tool sees of it, and what it keeps between calls."""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from stillhouse.types import JsonObject

_LOG = logging.getLogger(__name__)


class ToolError(Exception):
    """Raised by a tool: the model reads the message verbatim, without the name of an exception."""


def explain(error: BaseException) -> str:
    """Return what an error says: its message behind its type, or alone for a `ToolError`; of a group all its errors."""
    text = str(error)
    if isinstance(error, BaseExceptionGroup):
        text = f"{error.message}: {'; '.join(map(explain, error.exceptions))}"
    if isinstance(error, ToolError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class AsyncClosable(Protocol):
    """A resource opened by the first call that needs it: a browser, the session of an MCP server."""

    async def close(self) -> None:
        """End it; called once, in any event loop."""


C = TypeVar("C", bound=AsyncClosable)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The rollout that calls belong to; the defaults stand for none."""

    rollout_key: str = ""
    prompt_id: str = ""
    sample_index: int = 0
    metadata: JsonObject = field(default_factory=dict)
    """The metadata of the prompt's row, verbatim."""


@dataclass(frozen=True, slots=True)
class ToolArgs(ToolContext):
    """Value of a parameter annotated `ToolArgs`; the model never sees it."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment variables named in `tools.environment` that are set."""


class RolloutScope:
    """Resources that one rollout keeps between its calls and closes at its end."""

    def __init__(self, context: ToolContext) -> None:
        self.context = context
        self._resources: dict[Hashable, Any] = {}

    def keep(self, owner: Hashable, make: Callable[[], C]) -> C:
        """Return the rollout's resource of `owner`, made by the first call; concurrent calls of one turn share it."""
        if owner not in self._resources:
            self._resources[owner] = make()
        return self._resources[owner]

    async def close(self) -> None:
        resources, self._resources = list(self._resources.values()), {}
        await close_all(reversed(resources))


async def close_all(resources: Iterable[AsyncClosable]) -> None:
    """Close each of them; a failure is logged, since the work is done and the others must still be closed."""
    for resource in resources:
        try:
            await resource.close()
        except Exception as error:
            _LOG.warning("tools: %s did not close: %s: %s", type(resource).__name__, type(error).__name__, error)
