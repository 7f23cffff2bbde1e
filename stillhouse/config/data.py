"""Sections of the prompts: where they come from, and how their answers are verified."""

from typing import Annotated, Literal

from pydantic import Field

from stillhouse.config.section import Section

Verifier = Literal[
    "exact", "normalised", "contains", "numeric", "math", "choice", "set", "list", "regex", "json", "python", "judge"
]
"""How an answer is compared with the expected one; `stillhouse.verification` says what each does."""


class PromptsConfig(Section):
    """Where prompts come from and which of them are held out for evaluation."""

    source: str = "embedded:prompts.jsonl"
    """Path of a txt, jsonl, csv or Parquet file, `hf:NAME` for a Hugging Face dataset, or `embedded:NAME`."""
    format: Literal["auto", "txt", "jsonl", "csv", "parquet", "hf"] = "auto"
    """How to read the source; `auto` decides by its ending or prefix."""
    hf_split: str = "train"
    """Split to read when the source is a Hugging Face dataset."""
    max_prompts: int | None = Field(default=None, ge=1)
    """Use the first so many distinct prompts; None uses all."""
    entries: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Use only these rows of the source, counted from 0; empty uses all."""
    held_out_fraction: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of prompts that no stage before evaluation sees, decided by each prompt's content."""
    split_seed: int = 0
    """Draws another held-out set of the same size."""
    verifier: Verifier = "normalised"
    """How an answer is compared with `expected_answer`; a row's `metadata.verifier` overrides it."""
    verifier_by_tag: dict[str, Verifier] = {}
    """Verifiers of prompts with these tags; a row's `metadata.verifier` overrides them."""
    failure_budget: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of malformed rows above which the stage fails."""
