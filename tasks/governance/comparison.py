"""Comparison: each model of a run with the champion, or with the base if there is none, on the held-out prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from pydantic import TypeAdapter

from stillhouse.config import ToolsConfig
from stillhouse.config.suites import SUITE_PREFIX
from stillhouse.evaluation.comparison import MetricComparison, compare_models, prompt_values
from stillhouse.evaluation.measure import reward_totals
from stillhouse.store import digest
from stillhouse.store.records import read_jsonl, read_metadata, read_trajectories
from stillhouse.tools.reward_set import RewardSet
from stillhouse.types import Artifact, JsonObject, Model
from tasks.cache.stage import call_stage
from tasks.evaluation import EVALUATION, evaluate, rewards_digest
from tasks.governance.champion import Registered
from tasks.models import teacher_model
from tasks.prompts import PromptSets, metadata_file
from tasks.run.context import Run, RunContext
from tasks.run.interruption import run_until_done
from tasks.run.stage import Stage
from tasks.sampling import TRAJECTORIES_FILE
from tasks.suites import SUITE, measure_on_suites, suite_scores

COMPARISON = Stage("comparison", version=2, result="against {reference}")
COMPARISON_STAGES: Final = (EVALUATION, SUITE, COMPARISON)
LINES_FILE: Final = "comparison.jsonl"
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


def compare(
    base: Model,
    champion: Registered | None,
    students: Sequence[Model],
    prompts: PromptSets,
    run: Run,
) -> ComparedModels:
    """Evaluate base, champion, students and teacher on the held-out prompts and compare them prompt by prompt."""
    champions = [] if champion is None else [champion.model]
    reference = base if champion is None else champion.model
    models = [base, *champions, *students, teacher_model(run.config.teacher)]
    evaluations = [evaluate(model, prompts, run.config, run) for model in models]
    on_suites = [measure_on_suites(model, run) for model in models]
    artifact: Artifact = call_stage(
        COMPARISON,
        run,
        models=[model.name for model in models],
        evaluations=evaluations,
        reference=reference.name,
        metadata=prompts.held_out_metadata,
        tools=run.config.tools if run.config.tools.rewards_file else None,
        rewards_sha256=rewards_digest(run.config.tools),
        **cast(Any, {"suites": on_suites} if any(on_suites) else {}),  # keys of comparisons without any stay
    )
    figures = {model.name: evaluation.facts for model, evaluation in zip(models, evaluations, strict=True)}
    return ComparedModels(reference, champion, students, read_lines(artifact), figures)


@COMPARISON.made_by
def comparison_task(
    models: list[str],
    evaluations: list[Artifact],
    reference: str,
    metadata: Artifact,
    tools: ToolsConfig | None,
    rewards_sha256: str | None,
    key: str,
    context: RunContext,
    suites: list[list[Artifact]] | None = None,
) -> Artifact:
    """Verify the answers of each model, and compare it with the reference on the prompts that both answered."""
    prompt_metadata = read_metadata(metadata_file(metadata))
    values = {}
    for name, evaluation, on_suites in zip(models, evaluations, suites or [[]] * len(models), strict=True):
        trajectories = list(read_trajectories(Path(evaluation.uri) / TRAJECTORIES_FILE))
        rewards = {}
        if tools is not None:
            reward_set = RewardSet.from_config(tools)
            rewards = run_until_done(reward_totals(trajectories, prompt_metadata, reward_set))
            reward_set.failures.check(tools.rewards_file, context.runtime.failure_budget)
        values[name] = {**prompt_values(trajectories, prompt_metadata, rewards), **suite_scores(on_suites)}
    tags = {prompt: row.tag for prompt, row in prompt_metadata.items()}
    lines = compare_models(values, reference, tags)
    facts: JsonObject = {"reference": reference, **_figures(lines)}
    return context.store.write_rows(COMPARISON.name, digest(key), LINES_FILE, lines, facts)


def _figures(lines: Sequence[MetricComparison]) -> JsonObject:
    """Return the metrics of a comparison over all prompts."""
    facts: JsonObject = {}
    for line in lines:
        if line.tag is None and line.metric.startswith(("accuracy", "reward", SUITE_PREFIX)):
            name = f"{line.model}/{line.metric}"
            facts |= {f"{name}_difference": line.difference.difference, f"{name}_p": line.p}
    return facts


def read_lines(comparison: Artifact) -> list[MetricComparison]:
    return _LINES.validate_python(list(read_jsonl(Path(comparison.uri) / LINES_FILE)))
