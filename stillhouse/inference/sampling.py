"""What is sampled: the settings of one completion, before any endpoint's form of them."""

from dataclasses import dataclass, field, replace
from typing import Literal

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
    is_sent_once: bool = False
    """No other request holds this prompt: one sample of one turn."""
    extra_body: JsonObject = field(default_factory=dict)
    """Further keys of the request, which win over all others."""


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
