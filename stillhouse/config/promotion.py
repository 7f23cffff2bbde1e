"""Sections of what must be passed: a person's approval before training, and the promotion of a student to champion."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from stillhouse.config.section import Section


class ApprovalConfig(Section):
    """A person's yes between the dataset and training."""

    enabled: bool = False
    """Ask on the flow run's page in Prefect before training on the run's dataset, once for each dataset. A run of a
    deployment ends its process while it waits."""
    timeout_minutes: float = Field(default=1440.0, ge=0.5, le=43200.0)
    """Minutes to wait for an answer, at most 30 days; without one, or without a Prefect server, it is no. A day by
    default; a nightly run needs less than the time to the next."""


Metric = Literal["accuracy", "reward", "mean_completion_tokens", "truncated_share", "valid_tool_call_share"]
"""Figures that every prompt has for itself, so that two models can be compared prompt by prompt."""


def _not_taken(alias: str) -> str:
    if re.fullmatch(r"latest|v\d+|candidate", alias, re.IGNORECASE):
        raise ValueError("means another version in the registry; expected another, such as `champion`")
    return alias


class PromotionConfig(Section):
    """When a student takes the place of the champion, the registered model's version that is in use.

    Students are compared with the champion on the held-out prompts; while there is none, with the base. Nothing here
    enters a cache key.
    """

    form_first = ("enabled", "metric")

    enabled: bool = False
    """Give a student that passes all of the checks below the alias of the champion. Needs `tracking.register_as`."""
    alias: Annotated[str, Field(pattern=r"^[\w-]+$"), AfterValidator(_not_taken)] = "champion"
    """Alias of the registry that points to the champion; what serves the model loads this alias."""
    start_from_champion: bool = False
    """Train from the champion's weights, if there is one, instead of `student.model`."""
    candidates: tuple[str, ...] = ()
    """Models that `evaluate-models` measures beside base, champion and teacher: folders of students, Hugging Face ids,
    or `models:/NAME/VERSION` and `models:/NAME@ALIAS` of the registry. With none it takes the version under
    the alias `candidate` where `enabled` is set."""
    metric: Literal["accuracy", "reward"] = "accuracy"
    """Metric on which a student has to be better: `accuracy` where answers are verified, else `reward`."""
    level: float = Field(default=0.05, gt=0.0, lt=0.5)
    """Largest one-sided p of the paired test: the chance, over all students, of promoting one that is no better. A tag
    on which the student is worse by a p below it blocks the promotion."""
    no_worse: dict[str, Annotated[float, Field(ge=0.0)]] = {}
    """Metrics, and `suite NAME` of `evaluation.suites`, on which the student may not be worse, with the largest decline
    that the confidence interval may reach, in the metric's unit: `accuracy: 0.02` is two points. Fewer tokens
    and truncated answers are better, of all others more."""
    min_prompts: int = Field(default=100, ge=1)
    """Fewest held-out prompts with a value of `metric` for both models. Chance can hide a lead of 10 points on 100
    prompts, of 3 on 1,000."""
