"""Sections of the stages that make data: prompts, teacher, rollouts, tools, dataset."""

from typing import Literal, Self

from pydantic import Field, model_validator

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


class TeacherConfig(Section):
    """The model imitated."""

    model: str = "embedded:teacher"
    """Model name at the endpoint; without an endpoint, a Hugging Face id, a folder, or `embedded:NAME`."""
    base_url: str | None = None
    """OpenAI-compatible endpoint, up to and with `/v1`; None serves the model from this machine while it is needed."""
    usd_per_million_prompt_tokens: float | None = Field(default=None, ge=0.0)
    """Price of prompt tokens in USD per million; None means unknown, and costs are then reported as unknown."""
    usd_per_million_completion_tokens: float | None = Field(default=None, ge=0.0)
    """Price of completion tokens in USD per million; None means unknown. Both prices are given, or neither."""

    @model_validator(mode="after")
    def _prices_come_in_pairs(self) -> Self:
        if (self.usd_per_million_prompt_tokens is None) != (self.usd_per_million_completion_tokens is None):
            raise ValueError(
                "one of usd_per_million_prompt_tokens and usd_per_million_completion_tokens is set: give both, or "
                "leave both out to have costs reported as unknown"
            )
        return self


class RolloutsConfig(Section):
    """What is sampled from the teacher. Sampling fields and system prompt are part of a rollout's identity."""

    max_prompts: int | None = Field(default=None, ge=1)
    """Sample the teacher for the first so many training prompts; None for all. On-policy training uses all of them."""
    num_samples: int = Field(default=1, ge=1)
    """Trajectories per prompt."""
    system_prompt: str | None = None
    """Put before each prompt that has no system message of its own; None adds none."""
    temperature: float = Field(default=0.7, ge=0.0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus of the sampling distribution; 1 keeps all of it."""
    max_tokens: int = Field(default=2048, ge=1)
    """Most tokens of one completion."""
    max_turns: int = Field(default=10, ge=1)
    """Most completions of one rollout."""
    timeout_s: float | None = Field(default=None, gt=0.0)
    """Wall time of one rollout in seconds, tools included; None sets no limit."""
    seed: int | None = 0
    """Seed from which each request's own seed is derived; None sends no seed."""
    failure_budget: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of rollouts that may fail before the stage does; whatever finished is kept in any case."""


class ToolsConfig(Section):
    """Tools the teacher and the student may call."""

    builtin: tuple[Literal["calculator"], ...] = ()
    """Tools that come with Stillhouse."""
    file: str | None = None
    """Path of a Python file whose functions under `@tool` are offered; None offers none."""
    timeout_s: float = Field(default=60.0, gt=0.0)
    """Longest run of one tool call in seconds, for tools that set none of their own."""


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
