"""What is sampled: the settings of one completion, before any endpoint's form of them."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stillhouse.config import RolloutsConfig
from stillhouse.types import JsonObject, Message, ToolSchema

ToolChoice = Literal["auto", "none"]


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float | None
    """None leaves it to the model, as with `top_p`."""
    top_p: float | None
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
    is_shared: bool = False
    """Other samples of this prompt follow its first answer, and read it from the seller's cache."""
    extra_body: JsonObject = field(default_factory=dict)
    """Further keys of the request, which win over all others."""


class ChatRequest(NamedTuple):
    """What one completion is asked for with."""

    messages: Sequence[Message]
    tools: Sequence[ToolSchema]
    sampling: Sampling
    refused_keys: Set[str] = frozenset()
    """Keys of messages that the endpoint does not take."""


def sampling_of(
    config: RolloutsConfig,
    *,
    seed: int | None,
    max_tokens: int,
    tool_choice: ToolChoice = "auto",
    is_sent_once: bool = False,
    is_shared: bool = False,
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
        is_sent_once=is_sent_once,
        is_shared=is_shared,
        extra_body=config.extra_body,
    )
