"""A Prefect server that goes away is waited for, with one line when it goes and one when it is back.

Prefect's clients give up after a minute, which ends a flow, or at once where they had asked nothing before, which
leaves a worker deaf to cancels for good; after a quarter of an hour they end the worker.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import Final

import anyio
from httpx import AsyncClient, Client, ConnectError, ConnectTimeout, Request, Response
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient

_PAUSE_S: Final = 2.0
_AWAY: Final = (ConnectError, ConnectTimeout)
# They connect again by themselves, and log a traceback each time that they cannot.
_NOISY: Final = ("events.clients", "_internal.concurrency", "FlowRunCancellingObserver", "FlowRunSuspendingObserver")


def wait_out_outages(say: Callable[[str], object] = lambda line: None) -> None:
    """Have this process's clients wait for a server that answered before, unless a signal is about to end the run."""
    if PrefectHttpxSyncClient._send_single_request is not Client._send_single_request:
        return
    for name in _NOISY:
        logging.getLogger(f"prefect.{name}").disabled = True
    since: dict[bytes, float | None] = {}
    """By server that answered before, the time since which it does not."""

    def answers(response: Response) -> Response:
        server = response.request.url.netloc
        began, since[server] = since.get(server), None
        if began is not None:
            say(f"Prefect's server at {server.decode()} answers again, after {time.monotonic() - began:.0f} s")
        return response

    def is_waited_for(request: Request, ending: BaseException | None) -> bool:
        server = request.url.netloc
        if server not in since or not isinstance(ending, Exception | None):
            return False
        if since[server] is None:
            since[server] = time.monotonic()
            say(f"Prefect's server at {server.decode()} does not answer: waiting for it")
        return True

    async def ask(self: AsyncClient, request: Request) -> Response:
        ending = sys.exception()
        while True:
            try:
                return answers(await AsyncClient._send_single_request(self, request))
            except _AWAY:
                if not is_waited_for(request, ending):
                    raise
            await anyio.sleep(_PAUSE_S)

    def ask_sync(self: Client, request: Request) -> Response:
        ending = sys.exception()
        while True:
            try:
                return answers(Client._send_single_request(self, request))
            except _AWAY:
                if not is_waited_for(request, ending):
                    raise
            time.sleep(_PAUSE_S)

    PrefectHttpxAsyncClient._send_single_request = ask  # type: ignore[method-assign]
    PrefectHttpxSyncClient._send_single_request = ask_sync  # type: ignore[method-assign]
