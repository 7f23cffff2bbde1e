"""Where completions come from."""

from dataclasses import dataclass, field


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
