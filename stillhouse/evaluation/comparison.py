"""Several models on the same prompts, each compared with one of them, by metric and by tag."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stillhouse.dataset.totals import completion_tokens, totals_of
from stillhouse.evaluation.measure import TRUNCATED
from stillhouse.evaluation.paired import Difference, paired_difference
from stillhouse.types import JsonObject, PromptMetadata, Trajectory
from stillhouse.verification import INFRASTRUCTURE_STOPS, examine_trajectory

LOWER_IS_BETTER: Final[frozenset[str]] = frozenset({"mean_completion_tokens", "truncated_share"})
_DECIDING: Final[tuple[str, ...]] = ("accuracy", "reward")

Values = Mapping[str, Mapping[str, float]]
"""A model's values by metric and prompt id, or by suite and sample."""


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric of one model against the reference: a line of the comparison."""

    model: str
    metric: str
    tag: str | None
    """Tag of the prompts; None for all prompts."""
    difference: Difference

    @property
    def gain(self) -> tuple[float, float, float]:
        """Return the difference and the bounds of its interval, turned so that more is better."""
        result = self.difference
        if self.metric in LOWER_IS_BETTER:
            return -result.difference, -result.high, -result.low
        return result.difference, result.low, result.high

    @property
    def p_better(self) -> float:
        """Return the one-sided p-value of being better than the reference."""
        return self.difference.p_lower if self.metric in LOWER_IS_BETTER else self.difference.p_higher

    @property
    def p_worse(self) -> float:
        """Return the one-sided p-value of being worse."""
        return self.difference.p_higher if self.metric in LOWER_IS_BETTER else self.difference.p_lower

    @property
    def p(self) -> float:
        """Return the two-sided p-value."""
        return min(1.0, 2.0 * min(self.p_better, self.p_worse))

    def row(self) -> JsonObject:
        """Return the row of a table."""
        result = self.difference
        return {
            "model": self.model,
            "metric": self.metric,
            "tag": self.tag,
            "num_prompts": result.num_prompts,
            "value": result.mean,
            "reference": result.reference,
            "difference": result.difference,
            "low": result.low,
            "high": result.high,
            "p": self.p,
            "test": result.test,
            "gain": self.gain[0],
        }


def prompt_values(
    trajectories: Iterable[Trajectory],
    metadata: Mapping[str, PromptMetadata],
    rewards: Mapping[str, float | None],
) -> Values:
    """Return means over each prompt's trajectories, without those that the infrastructure failed, as `measure` does.

    `rewards` are totals by rollout key; empty where the run has none.
    """
    grouped: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trajectory in trajectories:
        if trajectory.stop_reason in INFRASTRUCTURE_STOPS:
            continue
        for metric, value in _values(trajectory, metadata, rewards).items():
            if value is not None:
                grouped[metric][trajectory.prompt_id].append(value)
    return {
        metric: {prompt: math.fsum(values) / len(values) for prompt, values in by_prompt.items()}
        for metric, by_prompt in grouped.items()
    }


def compare_models(
    models: Mapping[str, Values], reference: str, tags: Mapping[str, str | None]
) -> list[MetricComparison]:
    """Return every other model against `reference`, over all prompts and tag by tag; in the order of `models`.

    `tags` are by prompt id.
    """
    lines = []
    for name in (name for name in models if name != reference):
        for metric, values in models[name].items():
            known = (
                {tag for prompt in values if (tag := tags.get(prompt)) is not None} if metric in _DECIDING else set()
            )
            for tag in (None, *sorted(known)):
                part = {prompt: value for prompt, value in values.items() if tag in (None, tags.get(prompt))}
                difference = paired_difference(part, models[reference].get(metric, {}))
                if difference is not None:
                    lines.append(MetricComparison(name, metric, tag, difference))
    return lines


def line_of(lines: Sequence[MetricComparison], model: str, metric: str) -> MetricComparison | None:
    """Return the line of a model and a metric over all prompts; None where they share no prompt with a value."""
    return next((line for line in lines if (line.model, line.metric, line.tag) == (model, metric, None)), None)


def _values(
    trajectory: Trajectory, metadata: Mapping[str, PromptMetadata], rewards: Mapping[str, float | None]
) -> dict[str, float | None]:
    totals = totals_of(trajectory)
    num_calls = totals.num_tool_results
    return {
        "accuracy": examine_trajectory(trajectory, metadata.get(trajectory.prompt_id)).verified,
        "reward": rewards.get(trajectory.rollout_key),
        "mean_completion_tokens": completion_tokens(trajectory) if trajectory.turns else 0,
        "truncated_share": trajectory.stop_reason in TRUNCATED,
        "valid_tool_call_share": 1.0 - totals.num_tool_errors / num_calls if num_calls else None,
    }
