"""`RolloutContext`: what all rollouts of one collection share."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from stillhouse.agent.prepared_tools import PreparedTools
from stillhouse.config import RolloutsConfig
from stillhouse.inference.completion import ChatClient
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.journal import Journal
from stillhouse.inference.retry import Requester
from stillhouse.inference.stats import RolloutStats
from stillhouse.tools import Toolbox
from stillhouse.types import JsonObject, Turn


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """What all rollouts of one collection share."""

    endpoint: Endpoint
    config: RolloutsConfig
    journal: Journal
    client: ChatClient
    requester: Requester
    stats: RolloutStats
    asleep: Callable[[], AbstractContextManager[None]]
    """Entered while a rollout wants no slot: it runs a tool, or waits to try again."""
    metadata: Mapping[str, JsonObject]
    """Metadata of the prompts' rows by prompt id, for tools that are told it."""
    replayed: Callable[[Turn], None]
    """Told of each completion that an earlier attempt at the rollout paid for."""
    _offers: dict[tuple[str, ...], PreparedTools] = field(default_factory=dict, init=False)

    def offer(self, toolbox: Toolbox) -> PreparedTools:
        """What follows from a selection of the collection's tools; made when it is first met.

        Raises:
            ConfigError: `config.response_schema` is no JSON schema.
        """
        names = tuple(toolbox.names)
        offer = self._offers.get(names)
        if offer is None:
            offer = PreparedTools.of(toolbox, self.config, self.endpoint.identity)
            self._offers[names] = offer
        return offer
