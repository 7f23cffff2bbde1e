"""httpx under the guard: every request, redirects included, connects to a checked address."""

import ssl
from functools import cache
from typing import Final

import httpx

from stillhouse.http.bodies import ACCEPT_ENCODING
from stillhouse.tools.network.guard import Guard, host_and_port

REQUEST_FAILED: Final = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)
"""Errors of requests; UnicodeError if a redirect sets a cookie that no header can carry."""


class PinnedTransport(httpx.AsyncBaseTransport):
    """Sends a request to a checked address of its host; TLS and the Host header still name the host.

    Connections are not reused: httpx would find them by address, which hosts with different certificates may share.

    Raises, from requests:
        AddressRefused, HostUnknown: as `Guard.addresses`.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._inner = httpx.AsyncHTTPTransport(
            verify=certificates(), limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response of the first checked address that accepts the connection."""
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
    """A client whose connections pass the guard; proxies of the environment are not used."""
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
    """The trusted certificates; cached, as reading them takes 20 ms and every call makes a client."""
    return httpx.create_ssl_context()
