"""The parts that all rollouts of one collection share, and their keys."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from stillhouse.agent.turns import TurnRules
from stillhouse.config import RolloutsConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.journal import Journal
from stillhouse.inference.journalled_client import JournalledClient
from stillhouse.inference.keys import KeyForm
from stillhouse.inference.requester import Requester
from stillhouse.inference.stats import RolloutStats
from stillhouse.store import canonical_json
from stillhouse.tools import Toolbox
from stillhouse.types import JsonObject, Message, Prompt, ToolSchema


@dataclass(frozen=True, slots=True)
class PreparedTools:
    """The tools that some rollouts are offered, and what these have in common by it."""

    schemas: list[ToolSchema]
    num_characters: int
    """Length of the schemas as JSON in UTF-8."""
    takes_context: bool
    """True if a tool is given the prompt's metadata, which then is part of a rollout's identity."""
    key_form: KeyForm


class ToolSets:
    """Selections of the tools, each prepared for the first rollout that is offered it.

    `identity` is `Endpoint.identity`.
    """

    def __init__(self, config: RolloutsConfig, identity: str) -> None:
        self._config = config
        self._identity = identity
        self._prepared: dict[tuple[str, ...], PreparedTools] = {}

    def prepare(self, toolbox: Toolbox) -> PreparedTools:
        """Return what rollouts with the tools of `toolbox` have in common."""
        names = tuple(toolbox.names)
        if names not in self._prepared:
            schemas = toolbox.schemas()
            self._prepared[names] = PreparedTools(
                schemas=schemas,
                num_characters=len(canonical_json(schemas)) if schemas else 0,
                takes_context=toolbox.takes_context,
                key_form=KeyForm(self._identity, self._config, schemas),
            )
        return self._prepared[names]


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """The parts that all rollouts of one collection share."""

    endpoint: Endpoint
    config: RolloutsConfig
    rules: TurnRules
    read: Callable[[Message], Message]
    """Gives what the conversation keeps of a message that the model wrote."""
    journal: Journal
    client: JournalledClient
    requester: Requester
    stats: RolloutStats
    asleep: Callable[[], AbstractContextManager[None]]
    """Entered while a rollout wants no slot: it runs a tool, or waits before a retry."""
    answered: Callable[[str], None]
    """Called with a prompt's id after each of its answers."""
    samples_together: bool
    """Several samples of each prompt are taken one right after the other, not in a batch."""
    tool_sets: ToolSets
    metadata: Mapping[str, JsonObject]
    """Metadata of the prompts' rows by prompt id, for tools that take it."""


def rollout_keys(
    prompts: Iterable[Prompt],
    config: RolloutsConfig,
    toolbox: Toolbox,
    identity: str,
    metadata: Mapping[str, JsonObject],
) -> Iterator[str]:
    """Yield the key of every rollout that a collection may begin; prompts that name a tool not configured have none.

    `identity` is `Endpoint.identity`; `metadata` is by prompt id.
    """
    tool_sets = ToolSets(config, identity)
    for prompt in prompts:
        try:
            prepared = tool_sets.prepare(toolbox.select(prompt.tools))
        except ConfigError:
            continue
        prompt_metadata = metadata.get(prompt.id, {}) if prepared.takes_context else None
        yield from (prepared.key_form.key(prompt.id, index, prompt_metadata) for index in range(config.num_samples))
