"""Sections of the teacher, the rollouts and what they may cost."""

from typing import Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.section import Section
from stillhouse.types import JsonObject


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
    prices_file: str | None = None
    """YAML of prices by model, for where the two fields above are not set; None leaves it to what the endpoint says."""
    batch: bool = False
    """Ask through the provider's batch endpoint: half the price, hours of waiting, single-turn rollouts only."""

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
    """Trajectories per prompt; with `dataset.selection.target_rows`, the most."""
    trajectories_file: str | None = None
    """Take the trajectories of this file, as `stillhouse convert` writes it, and sample none; None samples."""
    system_prompt: str | None = None
    """Put before each prompt that has no system message of its own; None adds none."""
    temperature: float = Field(default=0.7, ge=0.0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus of the sampling distribution; 1 keeps all of it."""
    max_tokens: int = Field(default=2048, ge=1)
    """Most tokens of one completion."""
    max_turns: int = Field(default=10, ge=1)
    """Most completions of one rollout; a closing answer is not counted."""
    termination_policy: Literal["last_tool", "max_turns"] = "last_tool"
    """`last_tool` ends with the first answer that calls no tool; `max_turns` asks on with `continue_message`."""
    continue_message: str = "Continue."
    """The user's message after an answer, under the termination policy `max_turns`."""
    closing_answer: bool = True
    """Where the last turn still calls tools, refuse them with a message and ask once more for an answer."""
    response_schema: JsonObject = {}
    """JSON schema that the final answer has to meet; empty takes any text. It is sent as `response_format`; where an
    endpoint refuses that, as some do beside tools, set `extra_body: {response_format: {type: text}}`: answers are
    checked and corrected all the same."""
    max_corrections: int = Field(default=1, ge=0)
    """Times the model is told how its answer misses `response_schema` before the rollout counts as invalid."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """How long a reasoning model may think; None leaves it to the endpoint and sends nothing."""
    extra_body: JsonObject = {}
    """Further keys of every request, such as OpenRouter's `provider`."""
    record_tokens: bool = False
    """Keep token ids and log-probabilities where the endpoint gives them."""
    timeout_s: float | None = Field(default=None, gt=0.0)
    """Wall time of one rollout in seconds, tools included; None sets no limit."""
    max_rollout_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of one rollout, prompts and completions of all its turns; None sets no limit."""
    max_rollout_usd: float | None = Field(default=None, gt=0.0)
    """Most money one rollout may cost in USD; None sets no limit. It needs a known price."""
    seed: int | None = 0
    """Seed from which each request's own seed is derived; None sends no seed."""
    failure_budget: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of rollouts that may fail before the stage does; whatever finished is kept in any case."""


class BudgetConfig(Section):
    """What the run may spend on the teacher, in all. Answers of earlier attempts at the same rollouts count as well."""

    max_usd: float | None = Field(default=None, gt=0.0)
    """Most money in USD; None sets no limit. It needs a known price."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens, prompts and completions together; None sets no limit."""
    max_requests: int | None = Field(default=None, ge=1)
    """Most requests, those that failed included; None sets no limit."""
    max_hours: float | None = Field(default=None, gt=0.0)
    """Most hours of wall time for the rollouts of one attempt; None sets no limit."""
