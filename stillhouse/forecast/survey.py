"""`Survey`: the rollouts of a stage: how long their requests are, what the journal holds, and what those took."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from stillhouse.agent.turns import first_messages
from stillhouse.config import RolloutsConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.budget import spend_of
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.journal import Journal
from stillhouse.rollouts.context import ToolSets
from stillhouse.store import canonical_json, exact_json
from stillhouse.store.records import trajectory_from_json
from stillhouse.tools import Toolbox
from stillhouse.types import Prompt, PromptMetadata

_MAX_READ: Final = 200


class Figures(NamedTuple):
    """Figures of one rollout: the characters of its first request as JSON; the rest is of all its requests."""

    characters: float
    requests: float
    prompt_tokens: float
    completion_tokens: float
    usd: float | None
    """None if unknown."""


class Survey:
    """`config.num_samples` rollouts of each prompt; prompts that name unknown tools fail without a request."""

    def __init__(
        self,
        endpoint: Endpoint,
        prompts: Iterable[Prompt],
        config: RolloutsConfig,
        toolbox: Toolbox,
        metadata: Mapping[str, PromptMetadata],
        journal: Journal | None,
    ) -> None:
        self.endpoint, self.config = endpoint, config
        self.lengths: dict[str, int] = {}
        """Characters of the first request, by the id of the prompt."""
        self.unasked: list[Prompt] = []
        """Prompts none of whose rollouts is finished."""
        self.num_to_come = self.characters_to_come = 0
        self.offers_tools = False
        tool_sets, paid = ToolSets(config, endpoint.identity), list[str]()
        for prompt in prompts:
            try:
                tools = tool_sets.prepare(toolbox.select(prompt.tools))
            except ConfigError:
                continue
            messages = first_messages(prompt, config.system_prompt)
            length = tools.num_characters + sum(len(canonical_json(message)) for message in messages)
            num_paid = len(paid)
            if journal is not None:
                row = metadata[prompt.id].metadata if tools.takes_context else None
                keys = (tools.key_form.key(prompt.id, index, row) for index in range(config.num_samples))
                paid += filter(journal.has_trajectory, keys)
            num_left = config.num_samples - len(paid) + num_paid
            self.unasked += [prompt] if num_left == config.num_samples else []
            self.lengths[prompt.id] = length
            self.num_to_come += num_left
            self.characters_to_come += num_left * length
            self.offers_tools |= bool(tools.schemas)
        self.num_paid = len(paid)
        bodies = (journal.trajectory(key) for key in paid[:: len(paid) // _MAX_READ + 1] if journal is not None)
        self.finished = [trajectory_from_json(exact_json.loads(body)) for body in bodies if body is not None]
        """Trajectories of the journal, or as many of them as tell enough."""
        self.seen: list[Figures] = []
        """Of those among them whose endpoint reported tokens."""
        for trajectory in self.finished:
            spends = [spend for turn in trajectory.turns if (spend := spend_of(turn, endpoint.price)) is not None]
            if not spends or len(spends) < len(trajectory.turns):
                continue
            costs = [spend.usd for spend in spends if spend.usd is not None]
            sampled = sum(turn.usage["completion_tokens"] for turn in trajectory.turns)
            sent = sum(spend.tokens for spend in spends) - sampled
            usd = sum(costs) if len(costs) == len(spends) else None
            self.seen.append(Figures(self.lengths[trajectory.prompt_id], len(spends), sent, sampled, usd))
