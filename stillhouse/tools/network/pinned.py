"""httpx under the guard: every request, also one that follows a redirect, connects to an address that was checked."""

import ssl
from functools import cache
from typing import Final

import httpx

from stillhouse.http.bodies import ACCEPT_ENCODING
from stillhouse.tools.network.guard import Guard, host_and_port

REQUEST_FAILED: Final = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)
"""What requests raise; the last one where a page sets a cookie that no header can carry, and leads on."""


class PinnedTransport(httpx.AsyncBaseTransport):
    """Sends a request to a checked address of its host; TLS and the Host header still name the host.

    Connections are not kept: httpx would find them by address, and two hosts may share one while their certificates
    differ.

    Raises, from requests:
        AddressRefused, HostUnknown: as `Guard.addresses`.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._inner = httpx.AsyncHTTPTransport(
            verify=certificates(), limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer of the first checked address that takes the connection."""
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
        """Closes the open connections."""
        await self._inner.aclose()


def guarded_client(guard: Guard, timeout_s: float) -> httpx.AsyncClient:
    """A client whose every connection passes the guard; proxies named in the environment are not used."""
    return httpx.AsyncClient(
        transport=PinnedTransport(guard),
        headers={"Accept-Encoding": ACCEPT_ENCODING},
        timeout=timeout_s,
        follow_redirects=True,
        max_redirects=10,
        trust_env=False,
    )


@cache
def certificates() -> ssl.SSLContext:
    """The authorities trusted for TLS; kept, as reading them takes 20 ms and a client is made for one call."""
    return httpx.create_ssl_context()
