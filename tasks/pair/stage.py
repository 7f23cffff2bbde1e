"""The examination of a pair as a stage, before an on-policy training that may take more than minutes."""

import logging
from itertools import islice
from pathlib import Path
from typing import Final

from stillhouse.config import DistillConfig
from stillhouse.errors import TrainingError
from stillhouse.pair import PairFinding, verdict_of
from stillhouse.pair.cost import may_take_minutes
from stillhouse.store import digest
from stillhouse.store.records import read_jsonl, read_metadata, read_prompts, write_jsonl
from stillhouse.types import Artifact, Model
from tasks.pair.case import PairCase
from tasks.pair.examine import NUM_PROMPTS, examine_pair
from tasks.prompts import PromptSets, metadata_file, prompts_file
from tasks.remote.flow_run_stage import call_stage_on
from tasks.run.context import Run, RunContext
from tasks.run.stage import Stage

PAIR = Stage(
    "pair",
    version=2,
    result="{verdict}",
    when=lambda config: config.on_policy.pair_check != "off",
    foreseen=False,
    is_remote=True,
)
_FINDINGS_FILE: Final = "findings.jsonl"
_logger = logging.getLogger("stillhouse.pair")


def check_pair(start: Model, prompts: PromptSets, config: DistillConfig, run: Run) -> None:
    """Examines the pair of a costly on-policy training, and warns of what does not fit.

    Raises:
        TrainingError: the verdict is no, and `on_policy.pair_check` is `auto`.
    """
    check = config.on_policy.pair_check
    if not PAIR.when(config) or not may_take_minutes(config.on_policy, start.ref, config.local_teachers.values()):
        return
    is_held_out = prompts.held_out.num_rows > 0
    artifact: Artifact = call_stage_on(
        config.runtime.training_deployment,
        PAIR,
        run,
        start=start,
        prompts=prompts.held_out if is_held_out else prompts.train,
        metadata=prompts.held_out_metadata if is_held_out else prompts.train_metadata,
        case=PairCase.of(config),
    )
    findings = [PairFinding(**row) for row in read_jsonl(Path(artifact.uri) / _FINDINGS_FILE)]
    for finding in findings:
        if finding.level in ("change", "no"):
            _logger.warning("%s: %s", finding.name, finding.detail)
    grave = [f"{finding.name}: {finding.detail}" for finding in findings if finding.level == "no"]
    if grave and check == "auto":
        raise TrainingError(
            f"student and teacher do not fit together: {'; '.join(grave)}. Mend it, or set on_policy.pair_check to "
            "`warn` to train all the same"
        )


@PAIR.made_by
def pair_task(
    start: Model, prompts: Artifact, metadata: Artifact, case: PairCase, key: str, context: RunContext
) -> Artifact:
    """Examines a pair on the first of the prompts."""
    rows = list(islice(read_prompts(prompts_file(prompts)), NUM_PROMPTS))
    findings = examine_pair(start, rows, read_metadata(metadata_file(metadata)), case, context)
    lines = [finding._asdict() for finding in findings]
    facts = {"verdict": verdict_of(findings)}
    return context.store.write(
        PAIR.name, digest(key), lambda folder: (write_jsonl(folder / _FINDINGS_FILE, lines), facts)
    )
