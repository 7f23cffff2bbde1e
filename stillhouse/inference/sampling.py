"""What is sampled: the settings of one completion, before any endpoint's form of them."""

from dataclasses import dataclass, field, replace
from typing import Literal

from stillhouse.config import RolloutsConfig
from stillhouse.inference.failures import Failure, FailureKind
from stillhouse.types import JsonObject

ToolChoice = Literal["auto", "none"]


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float
    top_p: float
    max_tokens: int
    seed: int | None
    record_tokens: bool = False
    record_top_k: int | None = None
    """Most probable tokens to ask for at each sampled one; None asks for none."""
    tool_choice: ToolChoice = "auto"
    """`none` shows the tools and forbids to call them."""
    response_schema: JsonObject | None = None
    """JSON schema of the answer; None takes any text."""
    reasoning_effort: str | None = None
    """One of `rollouts.reasoning_effort`; None leaves it to the endpoint."""
    extra_body: JsonObject = field(default_factory=dict)
    """Further keys of the request, which win over all others."""


def sampling_of(
    config: RolloutsConfig, *, seed: int | None, max_tokens: int, tool_choice: ToolChoice = "auto"
) -> Sampling:
    """Return how a config samples one completion, with a seed and a limit of its own."""
    return Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=max_tokens,
        seed=seed,
        record_tokens=config.record_tokens,
        record_top_k=config.record_top_k,
        tool_choice=tool_choice,
        response_schema=config.response_schema or None,
        reasoning_effort=config.reasoning_effort,
        extra_body=config.extra_body,
    )


def explain_refusal(failure: Failure, sampling: Sampling) -> Failure:
    """Return the failure, with what to do where the endpoint refuses to give log-probabilities."""
    if sampling.record_top_k is None or failure.kind is not FailureKind.PERMANENT or "logprob" not in failure.message:
        return failure
    return replace(
        failure,
        message=f"{failure.message}. The endpoint refuses rollouts.record_top_k {sampling.record_top_k}: lower it "
        "(OpenAI gives 20, vLLM what its --max-logprobs says), or leave it out where a model gives none, as those that "
        "reason at OpenAI",
    )
