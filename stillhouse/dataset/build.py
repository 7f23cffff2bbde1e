"""Trajectories to a dataset: label, decide, check against the student's template, write, account for every row."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stillhouse.chat.refs import model_identity
from stillhouse.config import DatasetConfig
from stillhouse.dataset.card import CardFacts, dataset_card
from stillhouse.dataset.labels import Limits, label, rendering_of, verdicts
from stillhouse.dataset.rows import RowWriter, row_of
from stillhouse.dataset.tally import Tally
from stillhouse.errors import InputError
from stillhouse.progress import NoProgress, Progress
from stillhouse.store.fingerprint import file_sha256, unit_interval
from stillhouse.types import JsonObject, PromptMetadata, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILES: Final = ("train", "validation", "rejected")
_PROGRESS_ROWS: Final = 64
_NO_PROGRESS: Final = NoProgress()


def build_dataset(
    trajectories: Iterable[Trajectory],
    metadata: Mapping[str, PromptMetadata],
    config: DatasetConfig,
    *,
    tokenizer_ref: str,
    max_length: int,
    folder: Path,
    lineage: Mapping[str, str] | None = None,
    progress: Progress = _NO_PROGRESS,
) -> tuple[int, JsonObject]:
    """Fills `folder` with train.parquet, validation.parquet, rejected.parquet and a card, README.md.

    Files and card depend on the arguments alone, the order of `trajectories` included. Memory holds a row group for
    each file and 16 bytes for each rollout key.

    Args:
        trajectories: Finished and failed ones; of equal rollout keys the first stands.
        metadata: By prompt id; a prompt without an entry is unverified.
        config: What is kept.
        tokenizer_ref: The student, whose chat template every kept row is rendered with.
        max_length: Longest training row in the student's tokens.
        folder: An empty folder, for instance the one `ArtifactStore.write` hands to `fill`.
        lineage: Names and fingerprints of the inputs, for the card.
        progress: Told about every few dozen trajectories.

    Returns:
        Rows kept, and facts: the funnel, counts of reasons, verification, splits and tokens.

    Raises:
        InputError: No row is kept, or none of those kept falls into the training split.
        ConfigError: The tokenizer cannot be loaded or has no chat template.
    """
    tokenizer = _tokenizer(tokenizer_ref) if config.labels.render else None
    limits = Limits(config, min(max_length, config.filters.max_tokens or max_length))
    tally = Tally()
    with ExitStack() as stack:
        writers = {name: stack.enter_context(RowWriter(folder / f"{name}.parquet")) for name in FILES}
        for trajectory in _distinct(trajectories, tally):
            about = metadata.get(trajectory.prompt_id)
            name, row = _decide(trajectory, about, limits, tokenizer, tally)
            writers[name].write(row)
            if tally.num_rollouts % _PROGRESS_ROWS == 0:
                progress.update("dataset", tally.num_rollouts, None, kept=tally.kept)
    progress.update("dataset", tally.num_rollouts, tally.num_rollouts, kept=tally.kept)
    _check(tally, config)
    facts = CardFacts(
        tally=tally,
        config=config,
        max_tokens=limits.max_tokens,
        student=model_identity(tokenizer_ref) if config.labels.render else None,
        lineage=dict(lineage or {}),
        files={f"{name}.parquet": (writers[name].num_rows, file_sha256(folder / f"{name}.parquet")) for name in FILES},
    )
    (folder / "README.md").write_text(dataset_card(facts), encoding="utf-8")
    return tally.kept, tally.facts()


def _tokenizer(ref: str) -> "PreTrainedTokenizerBase":
    # Imports transformers, which reading or describing a dataset does not need.
    from stillhouse.chat.tokenizer import load_tokenizer

    return load_tokenizer(ref)


def _distinct(trajectories: Iterable[Trajectory], tally: Tally) -> Iterator[Trajectory]:
    seen: set[bytes] = set()
    for trajectory in trajectories:
        tally.num_rollouts += 1
        key = hashlib.blake2b(trajectory.rollout_key.encode(), digest_size=16).digest()
        if key in seen:
            tally.duplicates += 1
            continue
        seen.add(key)
        yield trajectory


def _decide(
    trajectory: Trajectory,
    about: PromptMetadata | None,
    limits: Limits,
    tokenizer: "PreTrainedTokenizerBase | None",
    tally: Tally,
) -> tuple[str, JsonObject]:
    """The file a trajectory goes to, and its row there."""
    labels = label(trajectory, about)
    found = verdicts(labels, limits)
    if not any(found) and tokenizer is not None:
        labels = replace(labels, rendering=rendering_of(trajectory, tokenizer))
        found = verdicts(labels, limits)
    reasons = [reason.value for reason in found if reason is not None]
    split = None if reasons else split_of(trajectory.prompt_id, limits.config)
    tally.add(labels, found, trajectory.model, split)
    return split or "rejected", row_of(trajectory, about, labels, drop_reasons=reasons, split=split)


def split_of(prompt_id: str, config: DatasetConfig) -> str:
    """`train` or `validation`, decided by the prompt alone, so that no prompt is in both."""
    # Apart from the held-out split: the same draw would leave no training prompt below the fraction.
    draw = unit_interval("validation", config.split_seed, prompt_id)
    return "validation" if draw < config.validation_fraction else "train"


def _check(tally: Tally, config: DatasetConfig) -> None:
    if tally.splits["train"] > 0:
        return
    steps = "\n".join(f"  {left:>8}  {step}" for step, left in tally.funnel())
    reasons = ", ".join(f"{reason} {count}" for reason, count in tally.reasons.most_common()) or "none"
    if tally.kept == 0:
        raise InputError(
            f"no trajectory of {tally.num_rollouts} is kept; expected at least one. Left after each filter:\n{steps}\n"
            f"Reasons: {reasons}. Loosen the section `dataset`, or look at the rollouts"
        )
    raise InputError(
        f"all {tally.kept} kept rows fall into the validation split; expected some to train on. Set "
        f"dataset.validation_fraction (now {config.validation_fraction}) lower or change dataset.split_seed "
        f"(now {config.split_seed})"
    )
