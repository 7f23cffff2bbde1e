"""Several models on the same prompts, each compared with one of them, by metric and by tag."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stillhouse.config.promotion import Metric
from stillhouse.dataset.totals import completion_tokens, totals_of
from stillhouse.evaluation.measure import TRUNCATED
from stillhouse.evaluation.paired import Difference, paired_difference
from stillhouse.types import JsonObject, PromptMetadata, Trajectory
from stillhouse.verification import INFRASTRUCTURE_STOPS, verify_trajectory

LOWER_IS_BETTER: Final[frozenset[Metric]] = frozenset({"mean_completion_tokens", "truncated_share"})
_BY_TAG: Final[tuple[Metric, ...]] = ("accuracy", "reward")

Values = Mapping[Metric, Mapping[str, float]]
"""A model's values by metric and prompt id."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A line of the comparison: one metric of one model beside that of the reference."""

    model: str
    metric: Metric
    tag: str | None
    """The prompts' tag; None where it is all prompts."""
    difference: Difference

    @property
    def gain(self) -> tuple[float, float, float]:
        """The difference and the bounds of its interval, turned so that more is better."""
        one = self.difference
        if self.metric in LOWER_IS_BETTER:
            return -one.difference, -one.high, -one.low
        return one.difference, one.low, one.high

    @property
    def p_better(self) -> float:
        """One-sided p of the model's being better than the reference."""
        return self.difference.p_lower if self.metric in LOWER_IS_BETTER else self.difference.p_higher

    @property
    def p_worse(self) -> float:
        """One-sided p of its being worse."""
        return self.difference.p_higher if self.metric in LOWER_IS_BETTER else self.difference.p_lower

    @property
    def p(self) -> float:
        """Two-sided p: of a difference this large in either direction."""
        return min(1.0, 2.0 * min(self.difference.p_higher, self.difference.p_lower))

    def row(self) -> JsonObject:
        """The line as a table shows it."""
        one = self.difference
        return {
            "model": self.model,
            "metric": self.metric,
            "tag": self.tag,
            "num_prompts": one.num_prompts,
            "value": one.mean,
            "reference": one.reference,
            "difference": one.difference,
            "low": one.low,
            "high": one.high,
            "p": self.p,
            "test": one.test,
            "gain": self.gain[0],
        }


def prompt_values(
    trajectories: Iterable[Trajectory],
    metadata: Mapping[str, PromptMetadata],
    rewards: Mapping[str, float | None],
) -> Values:
    """Means over each prompt's trajectories; those that the infrastructure failed are left out, as `measure` does.

    Args:
        trajectories: of one model.
        metadata: by prompt id.
        rewards: totals by rollout key; empty where the run has none.
    """
    found: defaultdict[Metric, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trajectory in trajectories:
        if trajectory.stop_reason in INFRASTRUCTURE_STOPS:
            continue
        for metric, value in _values(trajectory, metadata, rewards).items():
            if value is not None:
                found[metric][trajectory.prompt_id].append(value)
    return {
        metric: {prompt: math.fsum(values) / len(values) for prompt, values in by_prompt.items()}
        for metric, by_prompt in found.items()
    }


def compare_models(
    models: Mapping[str, Values], reference: str, tags: Mapping[str, str | None], *, confidence: float
) -> list[Compared]:
    """Every other model against `reference`, over all prompts and tag by tag; in the order of `models`.

    Args:
        models: values by the model's name, the reference's among them.
        reference: name of the model that the others are compared with.
        tags: by prompt id; None where a prompt has none.
        confidence: level of the intervals.
    """
    theirs = models[reference]
    lines = []
    for name, ours in models.items():
        if name == reference:
            continue
        for metric, values in ours.items():
            parts: dict[str | None, Mapping[str, float]] = {None: values}
            if metric in _BY_TAG:
                parts |= _by_tag(values, tags)
            for tag, part in parts.items():
                difference = paired_difference(part, theirs.get(metric, {}), confidence=confidence)
                if difference is not None:
                    lines.append(Compared(name, metric, tag, difference))
    return lines


def line_of(lines: Sequence[Compared], model: str, metric: Metric) -> Compared | None:
    """The line of a model and a metric over all prompts; None where they share no prompt with a value."""
    return next((one for one in lines if (one.model, one.metric, one.tag) == (model, metric, None)), None)


def _values(
    trajectory: Trajectory, metadata: Mapping[str, PromptMetadata], rewards: Mapping[str, float | None]
) -> dict[Metric, float | None]:
    totals = totals_of(trajectory)
    num_calls = totals.num_tool_results
    return {
        "accuracy": verify_trajectory(trajectory, metadata.get(trajectory.prompt_id)),
        "reward": rewards.get(trajectory.rollout_key),
        "mean_completion_tokens": completion_tokens(trajectory) if trajectory.turns else 0,
        "truncated_share": trajectory.stop_reason in TRUNCATED,
        "valid_tool_call_share": 1.0 - totals.num_tool_errors / num_calls if num_calls else None,
    }


def _by_tag(values: Mapping[str, float], tags: Mapping[str, str | None]) -> dict[str | None, dict[str, float]]:
    found: dict[str | None, dict[str, float]] = {}
    for tag in sorted({tag for prompt in values if (tag := tags.get(prompt)) is not None}):
        found[tag] = {prompt: value for prompt, value in values.items() if tags.get(prompt) == tag}
    return found
