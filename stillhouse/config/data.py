"""Sections of prompts and dataset: what goes into the rollouts and what is made of them."""

from typing import Literal

from pydantic import Field

from stillhouse.config.section import Section


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
    entries: tuple[int, ...] = ()
    """Use only these rows of the source, counted from 0; empty uses all."""
    held_out_fraction: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of prompts that no stage before evaluation sees, decided by each prompt's content."""
    split_seed: int = 0
    """Draws another held-out set of the same size."""
    verifier: Literal["numeric", "exact", "contains"] = "exact"
    """How an answer is compared with `expected_answer`; a row's `metadata.verifier` overrides it."""
    failure_budget: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of malformed rows above which the stage fails."""


class DatasetConfig(Section):
    """Which trajectories become training rows. Filters label; `kept` follows from labels and this section."""

    drop_wrong: bool = True
    """Drop trajectories whose answer is verified as wrong."""
    keep_unverified: bool = True
    """Keep trajectories whose prompt has no expected answer."""
    max_tool_errors: int | None = Field(default=None, ge=0)
    """Drop trajectories with more failed tool calls; None sets no limit."""
    max_turns: int | None = Field(default=None, ge=1)
    """Drop trajectories with more turns; None sets no limit."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Drop trajectories longer than this many student tokens; None leaves it to the student's `max_length`."""
    render_check: bool = True
    """Render each row with the student's chat template and drop what it cannot learn from; off, nothing is rendered."""
    validation_fraction: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of prompts whose rows are kept out of training to measure validation loss."""
    split_seed: int = 0
    """Draws another validation split of the same size."""
