"""A dataset built in this process."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from stillhouse.chat.refs import model_identity
from stillhouse.config import DatasetConfig, StudentConfig, ToolsConfig
from stillhouse.dataset.build import assemble_dataset, max_row_tokens
from stillhouse.dataset.duplicates.find import find_duplicates
from stillhouse.dataset.labelling.label import Labelling, label_shard
from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.schema import CANDIDATES_FILE, SIGNATURES_FILE, CandidateShard
from stillhouse.types import JsonObject, PromptMetadata, Trajectory


def build_dataset(
    trajectories: Iterable[Trajectory],
    metadata: Mapping[str, PromptMetadata],
    config: DatasetConfig,
    *,
    tokenizer_ref: str,
    max_length: int,
    folder: Path,
) -> tuple[int, JsonObject]:
    """Label trajectories here, without a judge or the student, and fill the empty `folder` as `assemble_dataset`."""
    labelling = Labelling.of(config, tools=ToolsConfig(), student=StudentConfig(model=tokenizer_ref))
    with TemporaryDirectory(dir=folder.parent) as name:
        work = Path(name)
        label_shard(trajectories, metadata, labelling, work)
        shard = CandidateShard(work / CANDIDATES_FILE, work / SIGNATURES_FILE)
        (part,) = find_duplicates([shard], config.comparison, work)
        origin = Origin(
            config=config,
            code_version="tested",
            student=model_identity(tokenizer_ref) if config.labels.render else None,
            max_tokens=max_row_tokens(config, max_length),
            lineage={},
        )
        return assemble_dataset([replace(shard, duplicates=part)], origin, folder)
