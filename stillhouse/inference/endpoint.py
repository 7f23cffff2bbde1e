"""An endpoint, and the model there."""

import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from stillhouse.config import ApiName, ModelRole
from stillhouse.config.rollouts import ClientKind
from stillhouse.inference.price import Price
from stillhouse.sellers import ANTHROPIC
from stillhouse.types import Turn

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_PRIVATE_SUFFIXES: Final = (".local", ".localhost", ".internal", ".lan", ".home.arpa")


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
    service_tier: str | None = None
    """Service tier that requests ask for; None leaves it to the account's settings."""
    flex_fallback: bool = False
    """`teacher.flex_fallback`."""
    token: Callable[[], Awaitable[str]] | None = field(default=None, repr=False)
    """Gives a token for each request in place of `api_key`, which is then empty."""
    client: ClientKind = "auto"
    capacity: int | None = None
    """Requests that a server of this run's own takes at once; None of any other, whose limits are learnt."""
    comes_back: bool = False
    """Whether it is a server of this run's own that is started again when it ends, so that it is waited for."""
    api: ApiName = "auto"
    """`teacher.api`."""

    @property
    def is_local(self) -> bool:
        """Return whether this run serves the model itself, so that nothing is charged."""
        return self.capacity is not None

    def with_cost(self, turn: Turn) -> Turn:
        """Return the turn with its cost by the price, if known, where the endpoint did not report one."""
        if turn.cost_usd is not None:
            return replace(turn, is_cost_told=True)
        return turn if self.price is None else replace(turn, cost_usd=self.price.of(turn.usage, turn.service_tier))

    @property
    def speaks_messages(self) -> bool:
        """Return whether it is asked through Anthropic's own API."""
        return self.api == "messages" or (self.api == "auto" and ANTHROPIC.is_at(self.base_url))

    @property
    def is_own(self) -> bool:
        """Return whether its server is on this machine or in a private network."""
        return is_own_address(self.base_url)

    @property
    def may_use_proxy(self) -> bool:
        """Return whether requests may go through the environment's proxy, which is never meant for this machine."""
        return urlsplit(self.base_url).hostname not in _LOOPBACK


def is_own_address(base_url: str) -> bool:
    """Return whether an address is of this machine or a private network, as its host's name or number tells."""
    host = urlsplit(base_url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith(_PRIVATE_SUFFIXES)


def through_package(base_url: str, client: ClientKind) -> bool:
    """Return whether an address is asked through the package `openai`; `auto` does so where it is not one's own."""
    return client == "openai" or (client == "auto" and not is_own_address(base_url))
