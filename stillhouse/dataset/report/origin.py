"""Where a dataset comes from: everything that decides what is in it, as names and hashes."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stillhouse.config import DatasetConfig

if TYPE_CHECKING:
    from stillhouse.inference.endpoint import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a dataset was made from. No dates: equal content has an equal origin."""

    config: DatasetConfig
    code_version: str
    """Version of Stillhouse. No commit: a folder whose rows are the same would get another fingerprint."""
    student: str | None
    """Identity of the model whose chat template rendered the rows; None where none did."""
    max_tokens: int | None
    """Longest row that may be kept, in the student's tokens; None where rows were not rendered."""
    price: "Price | None" = None
    """What the teacher costs; None where it is unknown."""
    lineage: dict[str, str] = field(default_factory=dict)
    """Names and fingerprints of the inputs."""
