"""The forecast of a config: of `stillhouse plan`, and of the first lines of a run."""

import asyncio
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from typing import TYPE_CHECKING

from stillhouse.config import DistillConfig, ModelRole, TeacherConfig
from stillhouse.errors import ConfigError
from stillhouse.forecast.layout import layout_of
from stillhouse.forecast.line import Line
from stillhouse.forecast.stages import Forecast
from stillhouse.forecast.survey import Survey
from stillhouse.forecast.text import summary
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.journal import open_journal
from stillhouse.inference.journal.journal import JOURNAL_FILE
from stillhouse.prompts import parse_prompts
from stillhouse.prompts.parse import split_prompts
from stillhouse.store import ArtifactStore
from stillhouse.store.records import read_metadata, read_prompts
from stillhouse.types import Prompt, PromptMetadata
from tasks.models import priced_endpoint

if TYPE_CHECKING:
    from tasks.prompts import PromptSets
    from tasks.run.context import Run


def plan(config: DistillConfig, num_rollouts: int) -> list[Line]:
    """Return the lines of `distill`, by `num_rollouts` finished rollouts: those of the journal, and new ones.

    The run finds the new ones in its journal. A teacher that this machine serves is not asked.

    Raises:
        StillhouseError: as `tasks.trial.run_few`, or prompts, tools or the journal cannot be read.
    """
    parsed = parse_prompts(config.prompts, config.runtime.failure_budget)
    split = split_prompts(parsed.prompts, config.prompts.held_out_fraction, config.prompts.split_seed)
    has_dataset = (config.sft.enabled and config.sft.dataset_weight > 0.0) or not config.on_policy.enabled
    goes_through = {
        "rollouts": has_dataset,
        "judge": has_dataset and config.dataset.judge.enabled,
        "sft": config.sft.enabled,
        "on_policy": config.on_policy.enabled,
        "evaluation": config.evaluation.enabled,
    }
    stages = {stage for stage, goes in goes_through.items() if goes}
    lines, found = _forecast(config, *split, parsed.metadata, stages)
    num = num_rollouts - len(found.finished)
    is_asked = has_dataset and config.rollouts.trajectories_file is None and config.teacher.base_url is not None
    # With a target, those that the run begins with.
    candidates = found.unasked[: config.dataset.selection.target_rows]
    if not is_asked or num <= 0 or not candidates:
        return lines
    # Its imports take seconds, for which a plan without rollouts need not wait.
    from tasks.trial import run_few

    candidates.sort(key=lambda prompt: found.lengths[prompt.id])
    step = max(len(candidates) // num, 1)
    run_few(candidates[step // 2 :: step][:num], parsed, config)
    return _forecast(config, *split, parsed.metadata, stages)[0]


def announce(prompts: "PromptSets", run: "Run") -> None:
    """Show what a run will pay for, as far as prompts and journal tell it, and a training that will not fit here."""
    from tasks.prompts import metadata_file, prompts_file
    from tasks.run.progress import progress

    try:
        layout_of(run.config)
    except ConfigError as error:
        # One that is done already needs no room: the training itself refuses.
        progress().announce(str(error))
    # What served teachers have scored already is not known here.
    config, stages = run.config, {stage.name for stage in run.plan or ()} - {"sft", "on_policy"}
    judge = [config.dataset.judge.model] if "judge" in stages else []
    if all(section.base_url is None for section in (config.teacher, *judge)):
        return
    train, held_out = (list(read_prompts(prompts_file(part))) for part in (prompts.train, prompts.held_out))
    parts = (prompts.train_metadata, prompts.held_out_metadata)
    metadata = {name: row for part in parts for name, row in read_metadata(metadata_file(part)).items()}
    lines, _ = _forecast(config, train, held_out, metadata, stages)
    if any(line.count > 0 and not line.is_local for line in lines):
        for line in summary(lines, config.budget):
            progress().announce(line)


def _forecast(
    config: DistillConfig,
    train: Sequence[Prompt],
    held_out: Sequence[Prompt],
    metadata: Mapping[str, PromptMetadata],
    stages: Set[str],
) -> tuple[list[Line], Survey]:
    def endpoint(section: TeacherConfig, role: ModelRole) -> Endpoint:
        return asyncio.run(priced_endpoint(section, config.runtime, role))

    teacher = judge = endpoint(config.teacher, ModelRole.TEACHER)
    if "judge" in stages:
        judge = endpoint(config.dataset.judge.model, ModelRole.JUDGE)
    if config.rollouts.trajectories_file is not None:
        stages = stages - {"rollouts"}
    root = ArtifactStore(config.runtime.store, config.runtime.scratch).root
    # A folder without a journal stays as it is.
    with open_journal(root) if (root / JOURNAL_FILE).exists() else nullcontext() as journal:
        forecast = Forecast(config, train, held_out, metadata, teacher, judge, journal)
        found = forecast.rollouts()
        return forecast.lines(stages, found), found
