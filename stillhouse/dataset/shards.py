"""Labelled trajectories on their way to a dataset: shards whose files have the same rows in the same order."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

CANDIDATES_FILE: Final = "candidates.parquet"
SIGNATURES_FILE: Final = "signatures.parquet"
JUDGE_FILE: Final = "judge.parquet"
DIFFICULTY_FILE: Final = "difficulty.parquet"
EMBEDDINGS_FILE: Final = "embeddings.parquet"


@dataclass(frozen=True, slots=True)
class CandidateShard:
    """The files of one shard. Row `i` of each is the same trajectory; a file is None where nothing was measured."""

    candidates: Path
    """Columns `schema.CANDIDATE_COLUMNS`."""
    signatures: Path
    """Columns `duplicates.signatures.SIGNATURE_SCHEMA`."""
    judge: Path | None = None
    """Columns `schema.JUDGE_COLUMNS`."""
    difficulty: Path | None = None
    """Columns `schema.DIFFICULTY_COLUMNS`."""
    embeddings: Path | None = None
    """One column `embedding`: a list of float32, all of one length, null where the row has no prompt text."""
    duplicates: Path | None = None
    """Columns `schema.DUPLICATE_COLUMNS`."""
