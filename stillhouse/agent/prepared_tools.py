"""`PreparedTools`: what all rollouts of a collection that are offered the same tools have in common, made once."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from stillhouse.agent.turns import TurnRules
from stillhouse.config import RolloutsConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.keys import KeyForm
from stillhouse.store import canonical_json
from stillhouse.tools import Toolbox
from stillhouse.types import JsonObject, Prompt, ToolSchema


@dataclass(frozen=True, slots=True)
class PreparedTools:
    """Tools and everything that follows from them and the config."""

    schemas: list[ToolSchema]
    num_characters: int
    """Length of the schemas as JSON in UTF-8."""
    takes_context: bool
    """Whether a tool is told the prompt's metadata, which then is part of a rollout's identity."""
    rules: TurnRules
    key_form: KeyForm

    @classmethod
    def of(cls, toolbox: Toolbox, config: RolloutsConfig, identity: str) -> "PreparedTools":
        """The offer of a toolbox.

        Raises:
            ConfigError: `config.response_schema` is no JSON schema.
        """
        schemas = toolbox.schemas()
        return cls(
            schemas=schemas,
            num_characters=len(canonical_json(schemas)) if schemas else 0,
            takes_context=toolbox.takes_context,
            rules=TurnRules.of(config),
            key_form=KeyForm(identity, config, schemas),
        )


def rollout_keys(
    prompts: Iterable[Prompt],
    config: RolloutsConfig,
    toolbox: Toolbox,
    identity: str,
    metadata: Mapping[str, JsonObject],
) -> Iterator[str]:
    """The key of every rollout that a collection may begin; a prompt that names a tool that is not there has none.

    Args:
        prompts: of the collection.
        config: what is sampled.
        toolbox: the tools configured.
        identity: `Endpoint.identity`.
        metadata: of prompts, by their ids, for tools that are told it.
    """
    offers: dict[tuple[str, ...], PreparedTools] = {}
    for prompt in prompts:
        try:
            tools = toolbox.select(prompt.tools)
        except ConfigError:
            continue
        names = tuple(tools.names)
        offer = offers.get(names) or offers.setdefault(names, PreparedTools.of(tools, config, identity))
        told = metadata.get(prompt.id, {}) if offer.takes_context else None
        yield from (offer.key_form.key(prompt.id, index, told) for index in range(config.num_samples))
