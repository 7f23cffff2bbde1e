"""Requests that a web page elsewhere has made a browser send to a server of this machine, and their refusal.

A page of another site can send requests to any address that the browser reaches. It gives itself away by the header
`Origin`, or, where the site's name was made to resolve to this server's address (DNS rebinding), by the header `Host`:
the browser still writes the site's name there. An address of digits cannot be rebound and is always accepted.
"""

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_POLICY_VIOLATION = 1008


class OwnOriginOnly:
    """ASGI middleware that answers 403 to a foreign `Host` or `Origin`, on web sockets too.

    `names` are those of the server, without port, besides IP addresses and `localhost`. Pages of `origins`, such as
    `https://team.example`, may call it besides its own; `*` stands for all.
    """

    def __init__(self, app: ASGIApp, names: Collection[str] = (), origins: Collection[str] = ()) -> None:
        self._app = app
        self._names = {"localhost", *(name.lower() for name in names)}
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self._refusal(Headers(scope=scope)) if scope["type"] in {"http", "websocket"} else None
        if reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason[:120]})
        else:
            error = {"message": reason, "type": "invalid_request_error", "code": "foreign_origin"}
            await JSONResponse({"error": error}, 403)(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_own(host):
            names = ", ".join(sorted(self._names))
            return (
                f"the header Host is {host[:200]!r}; expected an IP address or one of {names}. "
                "Start the server with --allowed-hosts to add a name"
            )
        # The Host is known to be this server's by now, and so is a page that came from it.
        if origin is None or urlsplit(origin).netloc == host or self._origins & {origin, "*"}:
            return None
        return f"the header Origin is {origin[:200]!r}; pages of other sites may not call this server"

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or _is_address(name)


def names_of(host: str, allowed: Collection[str] = ()) -> set[str]:
    """Return the names under which a server that listens on `host` is called, with those of `allowed`.

    A server that only this machine reaches has none besides `localhost`.
    """
    is_local = host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
    return {*allowed} if is_local else {host, socket.gethostname(), *allowed}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
