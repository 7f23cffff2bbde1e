"""The addresses that a network tool may reach.

A model writes the URLs, possibly as told by pages it read. So no tool connects to what only this machine or its network
can see: loopback, private, link-local and shared (CGNAT) ranges, multicast, reserved ranges, and the metadata services
of clouds. The addresses a name resolves to are checked, and the connection goes to a checked address and not to the
name, so that a second DNS answer cannot swap it (rebinding). Spellings such as `0x7f.1` or `2130706433` need no case of
their own: the resolver turns them into the address that is checked.

A proxy configured for the machine (`HTTPS_PROXY`) is not used, as nothing could be checked behind it. The client of
httpx made here connects to a checked address for every request, redirects included.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import httpx

from stillhouse.http.bodies import ACCEPT_ENCODING

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Addresses of a host name, as text; raises OSError if there are none."""

REQUEST_FAILED: Final = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)
"""Errors of requests; UnicodeError if a redirect sets a cookie that no header can carry."""

_PORTS: Final = {"http": 80, "https": 443}
# Ranges that `ipaddress` of some Python counts as global, and that are not reached over the internet. The registries:
# https://www.iana.org/assignments/iana-ipv4-special-registry and .../iana-ipv6-special-registry
_NEVER: Final = (
    # RFC 6890: protocol assignments, among them Oracle Cloud's metadata service (192.0.0.192).
    ipaddress.IPv4Network("192.0.0.0/24"),
    # RFC 7526: anycast to relays of 6to4, withdrawn; what answers there is near.
    ipaddress.IPv4Network("192.88.99.0/24"),
    # Azure's WireServer and DNS, which only virtual machines inside Azure can reach.
    # https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
    ipaddress.IPv4Network("168.63.129.16/32"),
    # RFC 9637: documentation.
    ipaddress.IPv6Network("3fff::/20"),
)
# RFC 4291 and https://www.iana.org/assignments/ipv6-address-space: all global unicast addresses so far. Outside are,
# among others, site-local (fec0::/10), IPv4-compatible (::/96) and segment-routing (5f00::/16) addresses.
_GLOBAL_IPV6: Final = ipaddress.IPv6Network("2000::/3")
# RFC 6052 and RFC 8215: IPv6 addresses that a gateway turns into the IPv4 address in their last 32 bits.
_NAT64: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))

# Reading the trusted certificates takes 20 ms, and every call makes a client.
certificates = cache(httpx.create_ssl_context)

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(Exception):
    """The URL leads to an address that tools may not reach; the message is for the model."""


class HostUnknown(Exception):
    """The host's name has no address; the message is for the model."""


class Guard:
    """Resolves hosts to addresses that may be connected to.

    `allowed_hosts` may be reached whatever their addresses are, as `name` or `name:port`. `resolve` None takes the
    system's resolver.
    """

    def __init__(self, allowed_hosts: Iterable[str], resolve: Resolve | None = None) -> None:
        self._allowed = frozenset(_normal(name) for name in allowed_hosts)
        self._resolve = resolve or _system_resolve

    def allows(self, host: str, port: int) -> bool:
        """Return whether the config names this host, with this port or without any."""
        name = _normal(host)
        return name in self._allowed or f"{name}:{port}" in self._allowed

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the checked addresses of a host; connections are made to these and to nothing else.

        Raise HostUnknown if it has none, AddressRefused if one is not public and the config does not name the host.
        """
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise HostUnknown(f"there is no host {host!r}: check the spelling of the URL") from error
        if not self.allows(host, port):
            for address in addresses:
                if not is_public(address):
                    raise AddressRefused(f"{host} is not on the public internet ({address}); it may not be reached")
        return addresses

    async def check(self, url: str) -> None:
        """Raise AddressRefused or HostUnknown if `url` may not be requested, as `host_and_port` and `addresses` do."""
        await self.addresses(*host_and_port(url))


def host_and_port(url: str) -> tuple[str, int]:
    """Return host and port of an http or https URL; raise AddressRefused for any other."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
    except ValueError as error:
        raise AddressRefused(f"{url!r} is not a URL: {error}") from error
    if scheme not in _PORTS or not host:
        raise AddressRefused(f"{url!r} is not a web address; write a URL that starts with https:// or http://")
    return host, port or _PORTS[scheme]


def is_public(address: str) -> bool:
    """Return whether the address, and any embedded in it, is globally reachable and not a cloud's metadata service."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return all(_is_public(part) for part in (ip, *_embedded(ip)))


def _is_public(ip: IpAddress) -> bool:
    # `is_reserved` holds of 64:ff9b::/96, too; what it embeds decides. Its local twin is never public.
    if isinstance(ip, ipaddress.IPv6Address) and any(ip in network for network in _NAT64):
        return ip in _NAT64[0]
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is None and ip not in _GLOBAL_IPV6:
        return False
    if ip.is_multicast or ip.is_unspecified or ip.is_reserved or any(ip in network for network in _NEVER):
        return False
    return ip.is_global


def _embedded(ip: IpAddress) -> list[IpAddress]:
    """Return IPv4 addresses that a gateway or the kernel would connect to instead of this IPv6 address."""
    if isinstance(ip, ipaddress.IPv4Address):
        return []
    if ip.ipv4_mapped is not None:
        return [ip.ipv4_mapped]
    if ip.sixtofour is not None:
        return [ip.sixtofour]
    if ip.teredo is not None:
        return list(ip.teredo)
    if ip in _NAT64[0]:
        return [ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)]
    return []


def _normal(name: str) -> str:
    return name.lower().rstrip(".").replace("[", "").replace("]", "")


async def _system_resolve(host: str, port: int) -> list[str]:
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class PinnedTransport(httpx.AsyncBaseTransport):
    """Sends a request to a checked address of its host; TLS and the Host header still name the host.

    Connections are not reused: httpx would find them by address, which hosts with different certificates may share.
    Requests raise what `Guard.addresses` raises.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._inner = httpx.AsyncHTTPTransport(
            verify=certificates(), limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the response of the first checked address that accepts the connection."""
        host, port = host_and_port(str(request.url))
        failure: httpx.TransportError | None = None
        for address in await self._guard.addresses(host, port):
            pinned = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await self._inner.handle_async_request(pinned)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise failure or httpx.ConnectError(f"{host} has no address")

    async def aclose(self) -> None:
        await self._inner.aclose()


def guarded_client(guard: Guard, timeout_s: float) -> httpx.AsyncClient:
    """Return a client whose connections pass the guard; proxies of the environment are not used."""
    return httpx.AsyncClient(
        transport=PinnedTransport(guard),
        headers={"Accept-Encoding": ACCEPT_ENCODING},
        timeout=timeout_s,
        follow_redirects=True,
        max_redirects=10,
        trust_env=False,
    )
