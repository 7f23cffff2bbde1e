"""An endpoint and its prices."""

import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from stillhouse.config import ApiName, ModelRole
from stillhouse.config.rollouts import ClientKind
from stillhouse.types import TokenUsage, Turn

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_PRIVATE_SUFFIXES: Final = (".local", ".localhost", ".internal", ".lan", ".home.arpa")


@dataclass(frozen=True, slots=True)
class Price:
    """The prices of an endpoint, in USD per million tokens."""

    prompt: float
    completion: float
    """For reasoning tokens as well, unless `reasoning` names another price."""
    cached_prompt: float | None = None
    """For prompt tokens that the endpoint had cached; None charges them as the others."""
    reasoning: float | None = None
    """For reasoning tokens; None charges them as the completion they are part of."""
    request: float = 0.0
    """USD for each completion on top of its tokens; not per million."""

    def of(self, usage: TokenUsage) -> float | None:
        """Return USD for one completion; None when the endpoint did not report its tokens."""
        if "prompt_tokens" not in usage or "completion_tokens" not in usage:
            return None
        usd = self.prompt * usage["prompt_tokens"] + self.completion * usage["completion_tokens"]
        if self.cached_prompt is not None:
            usd += (self.cached_prompt - self.prompt) * min(usage.get("cached_tokens", 0), usage["prompt_tokens"])
        if self.reasoning is not None:
            reasoning_tokens = min(usage.get("reasoning_tokens", 0), usage["completion_tokens"])
            usd += (self.reasoning - self.completion) * reasoning_tokens
        return usd / 1e6 + self.request

    def worst(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return USD for one completion if each token is charged at its highest price."""
        prompt = max(self.prompt, self.cached_prompt or 0.0)
        completion = max(self.completion, self.reasoning or 0.0)
        return (prompt * prompt_tokens + completion * completion_tokens) / 1e6 + self.request

    def half(self) -> "Price":
        """Return the price through a batch endpoint, half of it: https://platform.openai.com/docs/guides/batch."""
        halved: dict[str, Any] = {name: None if usd is None else usd / 2 for name, usd in asdict(self).items()}
        return Price(**halved)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible endpoint and a model there."""

    base_url: str
    """Up to and with `/v1`."""
    model: str
    identity: str
    """Part of rollout keys: model and address, or a digest of the weights; never a port of the moment."""
    api_key: str = field(default="none", repr=False)
    """Sent to the endpoint and kept nowhere; an empty one is not sent."""
    price: Price | None = None
    """None if unknown; costs are then known only where the endpoint reports them."""
    role: ModelRole = ModelRole.TEACHER
    """Whose settings an error about this endpoint names."""
    key_variable: str | None = None
    """Environment variable that the key came from; None where none is needed."""
    token: Callable[[], Awaitable[str]] | None = field(default=None, repr=False)
    """Gives a token for each request in place of `api_key`, which is then empty."""
    client: ClientKind = "auto"
    capacity: int | None = None
    """Requests that a server of this run's own takes at once; None of any other, whose limits are learnt."""
    api: ApiName = "auto"
    """`teacher.api`."""

    @property
    def is_local(self) -> bool:
        """Return whether this run serves the model itself, so that nothing is charged."""
        return self.capacity is not None

    def with_cost(self, turn: Turn) -> Turn:
        """Return the turn with its cost by the price, if known, where the endpoint did not report one."""
        if turn.cost_usd is not None or self.price is None:
            return turn
        return replace(turn, cost_usd=self.price.of(turn.usage))

    @property
    def speaks_messages(self) -> bool:
        """Return whether it is asked through Anthropic's own API."""
        return self.api == "messages" or (self.api == "auto" and self.is_at("anthropic.com"))

    def is_at(self, *domains: str) -> bool:
        """Return whether its host is one of the domains, or below one."""
        host = urlsplit(self.base_url).hostname or ""
        return any(f".{host}".endswith(f".{domain}") for domain in domains)

    @property
    def is_own(self) -> bool:
        """Return whether its server is on this machine or in a private network."""
        host = urlsplit(self.base_url).hostname or ""
        try:
            return ip_address(host).is_private
        except ValueError:
            return "." not in host or host.endswith((".local", ".internal", ".lan"))

    @property
    def may_use_proxy(self) -> bool:
        """Return whether requests may go through the environment's proxy, which is never meant for this machine."""
        return urlsplit(self.base_url).hostname not in _LOOPBACK


def through_package(base_url: str, client: ClientKind) -> bool:
    """Return whether an address is asked through the package `openai`.

    `auto` does so unless it is of this machine or a private network, as its host's name or number tells.
    """
    if client != "auto":
        return client == "openai"
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith(_PRIVATE_SUFFIXES)
