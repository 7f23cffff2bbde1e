"""Connections that all clients of a piece of work share.

Each client would open connections of its own: with a client for each shard of 300 prompts that is nearly one for each
request, and with a handshake for each where the endpoint speaks TLS.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final

import aiohttp

# aiohttp's pool would stop at 100 connections; how many requests may be in flight is decided before they come here.
_UNLIMITED: Final = 0
_shared: ContextVar[tuple[asyncio.AbstractEventLoop, aiohttp.TCPConnector] | None] = ContextVar("_shared", default=None)


@asynccontextmanager
async def shared_connections() -> AsyncIterator[None]:
    """Give clients made inside, on this event loop, the connections of one pool, which is closed at the end."""
    connector = aiohttp.TCPConnector(limit=_UNLIMITED)
    token = _shared.set((asyncio.get_running_loop(), connector))
    try:
        yield
    finally:
        _shared.reset(token)
        await connector.close()


def connector_of_client() -> tuple[aiohttp.TCPConnector, bool]:
    """Return the connector for a new client of this event loop, and whether the client has to close it."""
    shared = _shared.get()
    if shared is not None and shared[0] is asyncio.get_running_loop():
        return shared[1], False
    return aiohttp.TCPConnector(limit=_UNLIMITED), True
