"""Dataset: rollouts measured, compared with each other, selected, split and written as Parquet."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from stillhouse.chat.refs import model_identity
from stillhouse.config import DatasetConfig, DistillConfig, TeacherConfig
from stillhouse.config.dataset import Comparison
from stillhouse.dataset.build import assemble_dataset, max_row_tokens
from stillhouse.dataset.duplicates.find import find_duplicates
from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.schema import CANDIDATES_FILE, DIFFICULTY_FILE, JUDGE_FILE, SIGNATURES_FILE, CandidateShard
from stillhouse.inference.price import Price
from stillhouse.rollouts.summary import add_up
from stillhouse.store import digest
from stillhouse.store.fingerprint import file_sha256
from stillhouse.types import Artifact, JsonObject
from stillhouse.version import code_version
from tasks.cache.stage import call_stage
from tasks.difficulty import measure_difficulty
from tasks.judging import judge
from tasks.labels import label
from tasks.prompts import PromptSets
from tasks.rollouts import Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.progress import progress
from tasks.run.stage import Stage

DUPLICATES = Stage("duplicates", version=1, result="{exact} exact, {near} near")
DATASET = Stage(
    "dataset",
    version=3,
    result="{kept} kept, {dropped} dropped",
    left_out={"duplicates": "repeated"},
)


def build_dataset(rollouts: Rollouts, prompts: PromptSets, config: DistillConfig, run: Run) -> Artifact:
    """Label, filter and select the rollouts of a run; return the dataset of training rows, or raise as its stages."""
    dataset = config.dataset
    labels = label(rollouts, config, run)
    judgements = judge(rollouts, config, run)
    difficulty = measure_difficulty(rollouts, config, run)
    earlier = [_fingerprint(Path(name)) for name in dataset.duplicates.earlier]
    duplicates = call_stage(DUPLICATES, run, labels=labels, duplicates=dataset.comparison, earlier=earlier)
    return call_stage(
        DATASET,
        run,
        labels=labels,
        judge=judgements,
        difficulty=difficulty,
        duplicates=duplicates,
        dataset=dataset,
        max_tokens=max_row_tokens(dataset, config.student.max_length),
        student=model_identity(config.student.model) if dataset.labels.render else None,
        price=_price(config.teacher),
        lineage={
            "prompts": prompts.train.fingerprint,
            "metadata": prompts.train_metadata.fingerprint,
            "rollouts": digest([shard.fingerprint for shard in rollouts.shards]),
        },
    )


def _price(teacher: TeacherConfig) -> JsonObject | None:
    """Return the teacher's price where the config states one; rows hold the actual costs."""
    stated: JsonObject = dict(teacher.usd_per_million_tokens.items())
    return {"cached_prompt": None, "reasoning": None, "request": 0.0, **stated} if stated else None


def _fingerprint(path: Path) -> JsonObject:
    """Return SHA-256 of each file of an earlier dataset; a missing one raises when it is read."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    return {file.name: file_sha256(file) for file in files if file.is_file()}


@DUPLICATES.made_by
def duplicates_task(
    labels: list[Artifact], duplicates: Comparison, earlier: list[JsonObject], key: str, context: RunContext
) -> Artifact:
    """Find rows and prompts that repeat each other or those of earlier datasets."""
    progress().say("comparing rows")

    def fill(folder: Path) -> tuple[int, JsonObject]:
        parts = find_duplicates([_shard(artifact) for artifact in labels], duplicates, folder)
        kinds = Counter(
            kind for part in parts for kind in pq.read_table(part, columns=["duplicate_kind"])[0].to_pylist()
        )
        facts = {"parts": [part.name for part in parts], "exact": kinds["exact"], "near": kinds["near"]}
        return sum(artifact.num_rows for artifact in labels), facts

    return context.store.write(DUPLICATES.name, digest(key), fill)


@DATASET.made_by
def dataset_task(
    labels: list[Artifact],
    judge: list[Artifact] | None,
    difficulty: list[Artifact] | None,
    duplicates: Artifact,
    dataset: DatasetConfig,
    max_tokens: int | None,
    student: str | None,
    price: JsonObject | None,
    lineage: dict[str, str],
    key: str,
    context: RunContext,
) -> Artifact:
    """Apply filters and selection; write kept and rejected rows, the card and the report."""
    progress().say("choosing rows and writing its report")

    def shard_file(artifacts: list[Artifact] | None, index: int, name: str) -> Path | None:
        return None if artifacts is None else Path(artifacts[index].uri) / name

    shards = [
        replace(
            _shard(artifact),
            duplicates=Path(duplicates.uri) / part,
            judge=shard_file(judge, index, JUDGE_FILE),
            difficulty=shard_file(difficulty, index, DIFFICULTY_FILE),
        )
        for index, (artifact, part) in enumerate(zip(labels, duplicates.facts["parts"], strict=True))
    ]
    judged = add_up([artifact.facts for artifact in judge or ()])
    if why := judged.get("why_lost"):
        lost = f"{judged['lost_judgements']:,}, most often since {max(why, key=why.__getitem__)}"
        lineage = {**lineage, "judgements lost": lost}
    origin = Origin(
        config=dataset,
        code_version=code_version(),
        student=student,
        max_tokens=max_tokens,
        price=None if price is None else Price(**price),
        lineage=lineage,
    )
    return context.store.write(DATASET.name, digest(key), lambda folder: assemble_dataset(shards, origin, folder))


def _shard(artifact: Artifact) -> CandidateShard:
    folder = Path(artifact.uri)
    return CandidateShard(folder / CANDIDATES_FILE, folder / SIGNATURES_FILE)
