"""Where completions come from, and what they cost there."""

from dataclasses import dataclass, field

from stillhouse.types import TokenUsage


@dataclass(frozen=True, slots=True)
class Price:
    """What an endpoint charges that does not say so itself, in USD per million tokens."""

    prompt: float
    completion: float

    def of(self, usage: TokenUsage) -> float | None:
        """USD for one completion; None when the endpoint did not report its tokens."""
        if "prompt_tokens" not in usage or "completion_tokens" not in usage:
            return None
        return (self.prompt * usage["prompt_tokens"] + self.completion * usage["completion_tokens"]) / 1e6


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible endpoint and the model asked there."""

    base_url: str
    """Up to and with `/v1`."""
    model: str
    """The model's name at the endpoint."""
    identity: str
    """What enters rollout keys: the model and where it is, or a digest of its weights; never a passing port."""
    api_key: str = field(default="none", repr=False)
    """Sent to the endpoint and kept nowhere."""
    price: Price | None = None
    """None when it is unknown; costs are then known only where the endpoint reports them."""
