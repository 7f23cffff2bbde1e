"""Contents of a run's report. All but the title is optional, for runs of one stage and failed runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from stillhouse.report.conversation import SampleTrajectory
from stillhouse.types import Artifact, JsonObject

USAGE: Final = ("prompt_tokens", "completion_tokens", "cost_usd", "estimated_usd", "possible_usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSummary:
    """One stage of this run and what it cost."""

    name: str
    artifact: Artifact
    """The first one that it made."""
    cached: bool
    """Whether an earlier run's result was used; its tokens do not count for this run."""
    seconds: float
    facts: JsonObject
    """Of its result; tokens and money are there if it sampled."""
    is_local: bool = False
    """Whether a model of this machine was sampled, for which nobody is paid."""

    @property
    def usage(self) -> JsonObject:
        """Return its tokens and money by name; None for what is unknown."""
        return {**dict.fromkeys(USAGE), "completion_tokens": self.facts.get("sampled_tokens"), **self.facts}


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
