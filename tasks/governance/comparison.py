"""Comparison: each model of a run with the champion, or with the base if there is none, on the held-out prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect import task
from pydantic import TypeAdapter

from stillhouse.config import ToolsConfig
from stillhouse.evaluation.comparison import (
    Against,
    MetricComparison,
    compare_models,
    compare_with_rivals,
    prompt_values,
)
from stillhouse.evaluation.measure import reward_totals
from stillhouse.store import digest
from stillhouse.store.records import read_jsonl, read_metadata, read_trajectories, write_jsonl
from stillhouse.tools.reward_set import RewardSet
from stillhouse.types import Artifact, JsonObject, Model
from tasks.cache.stage import CACHED_STAGE, Stage, call_stage
from tasks.evaluation import evaluate, rewards_digest
from tasks.governance.champion import Registered
from tasks.models import teacher_model
from tasks.prompts import PromptSets, metadata_file
from tasks.run.context import Run, RunContext
from tasks.run.interruption import run_until_done
from tasks.sampling import TRAJECTORIES_FILE

COMPARISON = Stage("comparison", version=2)
LINES_FILE: Final = "comparison.jsonl"
RIVALS_FILE: Final = "rivals.jsonl"
"""Comparisons with rivals, a row each; only where there are rivals."""
_LINES: Final = TypeAdapter(list[MetricComparison])


@dataclass(frozen=True, slots=True)
class ComparedModels:
    """A comparison of the candidates `students` with the model `reference`."""

    reference: Model
    champion: Registered | None
    students: Sequence[Model]
    lines: list[MetricComparison]
    evaluations: dict[str, JsonObject]
    """Metrics of `stillhouse.evaluation.measure` by model."""
    against: Against = field(default_factory=dict)
    """Comparisons of the students that have rivals with these."""


def compare(
    base: Model,
    champion: Registered | None,
    students: Sequence[Model],
    prompts: PromptSets,
    run: Run,
    rivals: Sequence[Model] = (),
) -> ComparedModels:
    """Evaluates base, champion, students and teacher on the held-out prompts and compares them prompt by prompt.

    `rivals` are evaluated as well, and the last of `students` is compared with each of them too.

    Raises:
        InputError: no prompt was held out.
        FailureBudgetExceeded, EndpointError: a model could not be sampled.
    """
    champions = [] if champion is None else [champion.model]
    reference = base if champion is None else champion.model
    models = [base, *champions, *students]
    models += [rival for rival in rivals if rival not in models] + [teacher_model(run.config.teacher)]
    # A rival that is the reference has its comparison.
    names = [rival.name for rival in rivals if rival.name != reference.name]
    further: JsonObject = {"rivals": {students[-1].name: names}} if names else {}
    evaluations = [evaluate(model, prompts, run.config, run) for model in models]
    artifact: Artifact = call_stage(
        COMPARISON,
        comparison_task,
        run,
        models=[model.name for model in models],
        evaluations=evaluations,
        reference=reference.name,
        metadata=prompts.held_out_metadata,
        confidence=run.config.evaluation.confidence,
        tools=run.config.tools if run.config.tools.rewards_file else None,
        rewards_sha256=rewards_digest(run.config.tools),
        **further,
    )
    figures = {model.name: evaluation.facts for model, evaluation in zip(models, evaluations, strict=True)}
    against = _read_rivals(artifact) if names else {}
    return ComparedModels(reference, champion, students, read_lines(artifact), figures, against)


@task(name="comparison", **CACHED_STAGE)
def comparison_task(
    models: list[str],
    evaluations: list[Artifact],
    reference: str,
    metadata: Artifact,
    confidence: float,
    tools: ToolsConfig | None,
    rewards_sha256: str | None,
    key: str,
    context: RunContext,
    rivals: dict[str, list[str]] | None = None,
) -> Artifact:
    """Verifies the answers of each model, and compares it with the reference on the prompts that both answered.

    `rivals` names by student the models that it is compared with beside the reference.
    """
    prompt_metadata = read_metadata(metadata_file(metadata))
    values = {}
    for name, evaluation in zip(models, evaluations, strict=True):
        trajectories = list(read_trajectories(Path(evaluation.uri) / TRAJECTORIES_FILE))
        rewards = {}
        if tools is not None:
            reward_set = RewardSet.from_config(tools)
            rewards = run_until_done(reward_totals(trajectories, prompt_metadata, reward_set))
            reward_set.failures.check(tools.rewards_file, context.runtime.reward_failure_budget)
        values[name] = prompt_values(trajectories, prompt_metadata, rewards)
    tags = {prompt: row.tag for prompt, row in prompt_metadata.items()}
    lines = compare_models(values, reference, tags, confidence=confidence)
    against = compare_with_rivals(values, rivals or {}, confidence=confidence)
    rows: list[JsonObject] = [
        {"student": name, "rival": rival, "lines": against[name][rival]} for name in against for rival in against[name]
    ]
    facts: JsonObject = {"reference": reference, **_figures(lines)}
    for row in rows:
        facts |= _figures(row["lines"], f"_to/{row['rival']}")

    def fill(folder: Path) -> tuple[int, JsonObject]:
        if rows:
            write_jsonl(folder / RIVALS_FILE, rows)
        return write_jsonl(folder / LINES_FILE, lines), facts

    return context.store.write(COMPARISON.name, digest(key), fill)


def _figures(lines: Sequence[MetricComparison], to: str = "") -> JsonObject:
    """The metrics of a comparison over all prompts, with `to` behind their names."""
    facts: JsonObject = {}
    for line in lines:
        if line.tag is None and line.metric in ("accuracy", "reward"):
            name = f"{line.model}/{line.metric}"
            facts |= {f"{name}_difference{to}": line.difference.difference, f"{name}_p{to}": line.p}
    return facts


def read_lines(comparison: Artifact) -> list[MetricComparison]:
    """The lines of a comparison artifact."""
    return _LINES.validate_python(list(read_jsonl(Path(comparison.uri) / LINES_FILE)))


def _read_rivals(comparison: Artifact) -> Against:
    against: dict[str, dict[str, list[MetricComparison]]] = {}
    for row in read_jsonl(Path(comparison.uri) / RIVALS_FILE):
        against.setdefault(row["student"], {})[row["rival"]] = _LINES.validate_python(row["lines"])
    return against
