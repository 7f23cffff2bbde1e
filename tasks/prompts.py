"""Prompts: read, checked, split into those trained on and those held out."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stillhouse.config import PromptsConfig
from stillhouse.prompts.parse import PROMPT_SOURCE, parse_prompts, split_prompts
from stillhouse.prompts.sources import source_fingerprint
from stillhouse.store import ArtifactStore, digest
from stillhouse.types import Artifact, FrozenModel, JsonObject, Prompt, PromptMetadata
from tasks.cache.stage import call_stage
from tasks.run.context import Run, RunContext
from tasks.run.progress import progress
from tasks.run.stage import Stage

_logger = logging.getLogger("stillhouse.prompts")

PROMPTS = Stage(
    "prompts",
    version=3,
    result="{train} + {held_out} held out",
    left_out={"malformed": "malformed", "duplicates": "repeated", "conflicts": "with other metadata"},
)


class PromptSets(FrozenModel):
    """Both splits. Metadata is kept apart from prompts, so that a changed expected answer keeps the rollouts."""

    train: Artifact
    train_metadata: Artifact
    held_out: Artifact
    held_out_metadata: Artifact
    facts: JsonObject


def load_prompts(config: PromptsConfig, run: Run) -> PromptSets:
    progress().say(f"reading {', '.join(config.sources.values()) or config.source}")
    return call_stage(PROMPTS, run, prompts=config, source_fingerprint=source_fingerprint(config))


@PROMPTS.made_by
def prompts_task(prompts: PromptsConfig, source_fingerprint: str, key: str, context: RunContext) -> PromptSets:
    """Read, check and split; each artifact is named by its content, so that equal prompts are equal inputs."""
    parsed = parse_prompts(prompts, context.runtime.failure_budget)
    left_out = [*parsed.report.malformed, *(parsed.report.conflicts if prompts.same_prompt == "first" else ())]
    for problem in left_out:
        _logger.warning("row left out: %s", problem)
    for note, number in parsed.report.notes.items():
        _logger.warning("%d rows %s", number, note)
    train, held_out = split_prompts(parsed.prompts, prompts.held_out_fraction, prompts.split_seed)
    facts: JsonObject = {
        "rows_read": parsed.report.rows_read,
        "malformed": len(parsed.report.malformed),
        "duplicates": parsed.report.duplicates,
        "conflicts": len(parsed.report.conflicts),
        "train": len(train),
        "held_out": len(held_out),
    }
    if prompts.sources:
        facts["sources"] = dict(Counter(row.metadata[PROMPT_SOURCE] for row in parsed.metadata.values()))
    store = context.store
    return PromptSets(
        train=write_prompts(store, train),
        train_metadata=write_metadata(store, [parsed.metadata[prompt.id] for prompt in train]),
        held_out=write_prompts(store, held_out),
        held_out_metadata=write_metadata(store, [parsed.metadata[prompt.id] for prompt in held_out]),
        facts=facts,
    )


def write_prompts(store: ArtifactStore, prompts: Sequence[Prompt], stage: str = "prompts") -> Artifact:
    """Write an artifact of `stage`, named by its prompts."""
    key = digest([prompt.id for prompt in prompts])
    return store.write_rows(stage, key, "prompts.jsonl", prompts)


def write_metadata(store: ArtifactStore, rows: Sequence[PromptMetadata]) -> Artifact:
    """Write an artifact named by its rows."""
    key = digest([[row.prompt_id, row.expected_answer, row.tag, row.verifier, row.metadata] for row in rows])
    return store.write_rows("metadata", key, "metadata.jsonl", rows)


def prompts_file(artifact: Artifact) -> Path:
    return Path(artifact.uri) / "prompts.jsonl"


def metadata_file(artifact: Artifact) -> Path:
    return Path(artifact.uri) / "metadata.jsonl"
