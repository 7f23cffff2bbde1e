"""How often the student is right before it is trained."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from stillhouse.config import RolloutsConfig
from stillhouse.dataset.totals import sampled_part
from stillhouse.store import prompt_id
from stillhouse.types import Prompt, PromptMetadata, Trajectory
from stillhouse.verification import verify_trajectory


def student_prompts(trajectories: Iterable[Trajectory]) -> dict[str, Prompt]:
    """What the student is asked, by the prompt id of the trajectories: each distinct prompt of theirs, once.

    A prompt is what its trajectories begin with, the system prompt that was put before it included, with the tools that
    they were offered.
    """
    prompts: dict[str, Prompt] = {}
    for trajectory in trajectories:
        if trajectory.prompt_id not in prompts:
            given = trajectory.messages[: len(trajectory.messages) - len(sampled_part(trajectory))]
            tools = [tool["function"]["name"] for tool in trajectory.tools]
            prompts[trajectory.prompt_id] = Prompt(prompt_id(given, tools), given, tools)
    return prompts


def student_rollouts(rollouts: RolloutsConfig, num_samples: int) -> RolloutsConfig:
    """How the student is sampled: within the teacher's bounds, at temperature 1, as evaluation samples it.

    Args:
        rollouts: of the teacher.
        num_samples: answers to each prompt.
    """
    return RolloutsConfig(
        num_samples=num_samples,
        temperature=1.0,
        max_tokens=rollouts.max_tokens,
        max_turns=rollouts.max_turns,
        closing_answer=False,
        seed=rollouts.seed,
        failure_budget=rollouts.failure_budget,
    )


def pass_rates(
    sampled: Iterable[Trajectory], prompts: Mapping[str, Prompt], metadata: Mapping[str, PromptMetadata]
) -> dict[str, float]:
    """Share of right answers among the verified ones, by prompt id; prompts without a verified one are left out.

    Args:
        sampled: the student's trajectories of `prompts`.
        prompts: what `student_prompts` gave.
        metadata: by the prompt id of the dataset's trajectories.
    """
    asked = {prompt.id: known for known, prompt in prompts.items()}
    verdicts: defaultdict[str, list[bool]] = defaultdict(list)
    for trajectory in sampled:
        known = asked[trajectory.prompt_id]
        verified = verify_trajectory(replace(trajectory, prompt_id=known), metadata.get(known))
        if verified is not None:
            verdicts[known].append(verified)
    return {known: sum(found) / len(found) for known, found in verdicts.items()}
