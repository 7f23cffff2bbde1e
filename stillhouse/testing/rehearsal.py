"""One rollout with a config's own tools and rewards, answered from a script in place of the teacher."""

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillhouse.config import DistillConfig, RuntimeConfig, load_config
from stillhouse.errors import EndpointError
from stillhouse.inference import Controller, Endpoint
from stillhouse.inference.journal import open_journal
from stillhouse.inference.rate_limit import Caps, RateControl
from stillhouse.prompts.row import parse_row
from stillhouse.rollouts import EverySample, RolloutCollector
from stillhouse.testing.scripted import Script, ScriptedEndpoint
from stillhouse.tools import Toolbox
from stillhouse.tools.reward_set import RewardScores, RewardSet
from stillhouse.types import Prompt, PromptMetadata, Trajectory


@dataclass(frozen=True, slots=True)
class Rehearsal:
    trajectory: Trajectory
    rewards: RewardScores
    """By the functions under `@reward`; without any, nothing is scored."""
    requests: list[dict[str, Any]]
    """Bodies that the teacher would have been sent, one for each turn."""


def rehearse(config: DistillConfig | str | Path, row: Mapping[str, Any], answers: Script) -> Rehearsal:
    """Run one rollout of a prompt over real HTTP, and score it.

    The `prompts`, `rollouts` and `tools` of the config apply as they do in a run. `row` is a row of the prompts file;
    `answers` are a completion for each turn (see `completion`), or a function from a request's body to one.

    Raise ConfigError if the config, or a file that it names, does not load, RowProblem if the row is no prompt,
    EndpointError if the rollout failed, for instance because it asked for more completions than there are.
    """
    settings = config if isinstance(config, DistillConfig) else load_config(Path(config))
    prompt, metadata = parse_row(row, settings.prompts)
    with ScriptedEndpoint(answers) as endpoint, tempfile.TemporaryDirectory() as folder:
        trajectory, rewards = asyncio.run(_run(settings, prompt, metadata, endpoint.url, folder))
        requests = endpoint.requests
    if trajectory.error is not None:
        raise EndpointError(f"the rollout failed: {trajectory.error['message']}")
    return Rehearsal(trajectory, rewards, requests)


async def _run(
    config: DistillConfig, prompt: Prompt, metadata: PromptMetadata, url: str, folder: str
) -> tuple[Trajectory, RewardScores]:
    with open_journal(folder) as journal:
        collector = RolloutCollector(
            EverySample([prompt], num_samples=1),
            endpoint=Endpoint(url, "simulated", identity="simulated"),
            config=config.rollouts,
            toolbox=Toolbox.from_config(config.tools),
            journal=journal,
            runtime=RuntimeConfig(max_attempts=1),
            metadata={prompt.id: metadata.metadata},
            controller=Controller(RateControl(1, Caps(1))),
        )
        async with aclosing(collector):
            trajectory = await anext(aiter(collector))
    async with RewardSet.from_config(config.tools) as rewards:
        return trajectory, await rewards.score(trajectory, metadata)
