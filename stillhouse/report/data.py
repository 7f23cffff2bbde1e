"""Contents of a run's report. All but the title is optional, for runs of one stage and failed runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from stillhouse.report.conversation import SampleTrajectory
from stillhouse.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSummary:
    """One stage of this run and what it cost."""

    name: str
    uri: str
    """Folder of its artifact."""
    fingerprint: str
    cached: bool
    """Whether an earlier run's result was used; its tokens do not count for this run."""
    seconds: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    """None if the price is unknown."""
    estimated_usd: float | None = None
    """The part of it that no endpoint told, by a price."""
    possible_usd: float | None = None
    """Most that requests can have cost on top that did not say what they cost."""
    is_local: bool = False
    """Whether a model of this machine was sampled, for which nobody is paid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    title: str
    created_at: datetime | None = None
    failure: str | None = None
    """Why the run ended early; None if it did not."""
    config: JsonObject = field(default_factory=dict)
    stages: Sequence[StageSummary] = ()
    evaluations: Sequence[JsonObject] = ()
    """Facts of `stillhouse.evaluation`, each with `name` (base, champion, sft, on_policy, teacher) and
    `teacher_kl`."""
    comparison: Sequence[JsonObject] = ()
    """Rows of `stillhouse.evaluation.comparison`: models against the reference, by metric and tag."""
    reference: str | None = None
    """The model that others are compared with; None without a comparison."""
    decision: str | None = None
    """Outcome of the promotion; None if it is disabled."""
    training: Mapping[str, Sequence[JsonObject]] = field(default_factory=dict)
    """Rows of `metrics.jsonl` by method (sft, on_policy): `step` and metrics."""
    dataset: JsonObject = field(default_factory=dict)
    """Facts of `stillhouse.dataset`, the funnel among them."""
    trajectories: Sequence[SampleTrajectory] = ()
    mlflow_url: str | None = None
    prefect_url: str | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
