"""Sections of what must be passed: a person's approval before training, and the promotion of a student to champion."""

from typing import Literal

from pydantic import Field

from stillhouse.config.section import Alias, Section


class ApprovalConfig(Section):
    """A person's yes between the dataset and training."""

    enabled: bool = False
    """Ask before anything is trained on the run's dataset: on the flow run's page in Prefect, once for each dataset.
    A run of a deployment gives its process back while it waits. Flows without a dataset of their own do not ask."""
    timeout_minutes: float = Field(default=1440.0, ge=0.5, le=43200.0)
    """Minutes to wait for an answer, at most 30 days."""
    at_timeout: Literal["approve", "reject"] = "reject"
    """The answer when nobody has given one in time, and where nobody can: in a run without a Prefect server."""


Metric = Literal["accuracy", "reward", "mean_completion_tokens", "truncated_share", "valid_tool_call_share"]
"""Figures that every prompt has for itself, so that two models can be compared prompt by prompt."""


class Margin(Section):
    """A metric on which a new champion may not be worse."""

    metric: Metric = "mean_completion_tokens"
    """What is compared; of tokens and of truncated answers less is better, of all others more."""
    margin: float = Field(default=0.0, ge=0.0)
    """By how much it may be worse, in the metric's own unit: 0.02 is two points of accuracy, 20 is twenty tokens. The
    whole confidence interval of the difference has to stay within it."""


class PromotionConfig(Section):
    """When a student takes the place of the champion, the registered model's version that is in use.

    Students are compared with the champion on the held-out prompts; while there is none, with the base. Nothing here
    enters a cache key.
    """

    enabled: bool = False
    """Give a student that passes all of the checks below the alias of the champion. Needs `tracking.register_as`."""
    alias: Alias = "champion"
    """Alias of the registry that points to the champion."""
    start_from_champion: bool = False
    """Train from the champion's weights, where there is one, in place of `student.model`."""
    candidates: tuple[str, ...] = ()
    """Models that `evaluate-models` measures beside base, champion and teacher: folders of students, Hugging Face ids,
    or `models:/NAME/VERSION` and `models:/NAME@ALIAS` of the registry. With none it takes the version under
    `tracking.alias` where `enabled` is set."""
    metric: Literal["accuracy", "reward"] = "accuracy"
    """What a student has to be better on."""
    level: float = Field(default=0.05, gt=0.0, lt=0.5)
    """How small the one-sided p of the paired test has to be: the chance of promoting a student that is no better.
    Several students of a run share it."""
    tag_level: float | None = Field(default=0.05, gt=0.0, lt=0.5)
    """A tag of which the student is worse on `metric` blocks it, where the one-sided p is below this; None lets none
    block."""
    no_worse: tuple[Margin, ...] = ()
    """Metrics on which the student may not be worse by more than a margin."""
    min_prompts: int = Field(default=100, ge=1)
    """Held-out prompts with a value of `metric` for both models that a promotion needs at least."""
