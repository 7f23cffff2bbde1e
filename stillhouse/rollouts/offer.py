"""`Offer`: what all rollouts of a collection that are offered the same tools have in common, made once."""

from dataclasses import dataclass

from stillhouse.config import RolloutsConfig
from stillhouse.rollouts.agent import AgentRules
from stillhouse.rollouts.keys import KeyForm
from stillhouse.store import canonical_json
from stillhouse.tools import Toolbox
from stillhouse.types import ToolSchema


@dataclass(frozen=True, slots=True)
class Offer:
    """Tools and everything that follows from them and the config."""

    schemas: list[ToolSchema]
    num_characters: int
    """Length of the schemas as JSON in UTF-8."""
    takes_context: bool
    """Whether a tool is told the prompt's metadata, which then is part of a rollout's identity."""
    rules: AgentRules
    key_form: KeyForm

    @classmethod
    def of(cls, toolbox: Toolbox, config: RolloutsConfig, identity: str) -> "Offer":
        """The offer of a toolbox.

        Raises:
            ConfigError: `config.response_schema` is no JSON schema.
        """
        schemas = toolbox.schemas()
        return cls(
            schemas=schemas,
            num_characters=len(canonical_json(schemas)) if schemas else 0,
            takes_context=toolbox.takes_context,
            rules=AgentRules.of(config, has_tools=bool(schemas)),
            key_form=KeyForm(identity, config, schemas),
        )
