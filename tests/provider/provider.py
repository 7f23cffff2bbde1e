"""A provider of completions that answers from a script, limits and fails on demand, and keeps a ledger.

    with SimulatedProvider(lambda request: Reply(completion("hello"))) as provider:
        ... ask provider.url ...
        assert len(provider.ledger) == 1

GET URL/stats counts the requests so far, GET URL/ledger lists them, GET URL/models names the models.

Served on one core without limits and latency: 22,000 short requests a second, from `wrk` from the other core.
"""

import asyncio
import hashlib
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import orjson
import uvloop

from tests.provider.answers import Answers, Service, size_of
from tests.provider.headers import limit_headers, refuse
from tests.provider.limits import Limiter, Refusal, Scope
from tests.provider.reply import ReceivedRequest, Reply, Script, error
from tests.provider.wire import Connection, Request

_RECENT_S = 0.05
_REFUSAL_S = 0.005


@dataclass(slots=True)
class Entry:
    """One line of the ledger of requests that came, were refused and were billed."""

    digest: str
    arrived_at: float
    """`time.time()`, comparable between processes of one machine."""
    status: int | None = None
    answered_at: float | None = None
    """When the last byte was handed over; None for what was never answered."""
    billed: bool = False
    """True if tokens were sampled: an answer with status 200, however it got through."""
    refused: Scope | None = None
    """The limit that it met."""
    tokens: int = 0


class SimulatedProvider:
    """An OpenAI-compatible endpoint at `url`, as a context manager.

    `script` says what to answer; it is called in the server's thread, so it must not block. Limits, headers and
    refusals are those of `service`; without a script, also answers, latencies and faults. Port 0 takes a free one.
    `models` are listed; an endpoint without any has no such page.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        service: Service | None = None,
        port: int = 0,
        models: Sequence[str] = ("simulated-1",),
    ) -> None:
        self._models = [{"id": name, "object": "model", "created": 1, "owned_by": "nobody"} for name in models]
        self._service = service = service or Service()
        self.script = script or Answers(service)
        self.ledger: list[Entry] = []
        self.in_flight = 0
        self.peak_in_flight = 0
        self.num_connections = 0
        self.num_rejected = 0
        self._limiter = Limiter(service.steps)
        self._bodies: list[bytes] = []
        self.num_billed = 0
        self._billed_recently: deque[float] = deque(maxlen=10_000)
        self._seen: Counter[str] = Counter()
        self._connections: set[Connection] = set()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=4096)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._serve()), name="simulated-provider", daemon=True
        )

    @property
    def billed(self) -> Counter[str]:
        """Return how often each distinct request was billed."""
        return Counter(entry.digest for entry in self.ledger if entry.billed)

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [orjson.loads(body) for body in self._bodies]

    def __enter__(self) -> Self:
        self._loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(self._accept, sock=self._socket)
        await self._stop.wait()
        server.close()
        for connection in tuple(self._connections):
            connection.transport.abort()
        await server.wait_closed()

    def _accept(self) -> Connection:
        self.num_connections += 1
        return Connection(self._handle, self._connections)

    def _handle(self, connection: Connection, request: Request) -> None:
        if request.method == b"GET":
            connection.answer(self._status_page(request.path))
            return
        now = time.time()
        received = self._note(request, now)
        entry = self.ledger[-1]
        reply = self._admitted(received, entry, now)
        if entry.refused is None:
            self.in_flight += 1
            self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
            entry.tokens = reply.tokens
        if reply.fault == "hang":
            connection.on_lost = self._free
        elif reply.delay_s:
            self._loop.call_later(reply.delay_s, partial(self._finish, connection, entry, reply))
        else:
            self._finish(connection, entry, reply)

    def _finish(self, connection: Connection, entry: Entry, reply: Reply) -> None:
        if entry.refused is None:
            self._free()
        entry.status = reply.status
        entry.billed = reply.status == 200 and reply.sampled
        connection.answer(reply)
        entry.answered_at = time.time()
        if entry.billed:
            self.num_billed += 1
            self._billed_recently.append(entry.answered_at)

    def _free(self) -> None:
        self.in_flight -= 1

    def _status_page(self, path: bytes) -> Reply:
        if path.endswith(b"/stats"):
            return Reply(self._counts())
        if path.endswith(b"/ledger"):
            return Reply(orjson.dumps(self.ledger))
        if path.endswith(b"/v1/models") and self._models:
            return Reply({"object": "list", "data": self._models})
        return error(404, "no such page")

    def _counts(self) -> dict[str, Any]:
        recently = time.time() - _RECENT_S
        return {
            "num_requests": len(self.ledger),
            "num_billed": self.num_billed,
            "num_billed_recently": sum(1 for at in self._billed_recently if at >= recently),
            "num_rejected": self.num_rejected,
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
        }

    def _note(self, request: Request, now: float) -> ReceivedRequest:
        digest = hashlib.sha256(request.body).hexdigest()
        received = ReceivedRequest(
            request.body, digest, self._seen[digest], len(self.ledger), request.authorization, request.path.decode()
        )
        self._seen[digest] += 1
        self.ledger.append(Entry(digest, now))
        self._bodies.append(request.body)
        return received

    def _admitted(self, request: ReceivedRequest, entry: Entry, now: float) -> Reply:
        """Return the script's answer, or a refusal where a limit is met."""
        if not self._service.steps:
            return self.script(request)
        elapsed_s = now - self.ledger[0].arrived_at
        refusal = self._limiter.refusal(elapsed_s, self.in_flight)
        if refusal is None:
            reply = self.script(request)
            size = size_of(request.raw, reply.tokens)
            refusal = self._limiter.size_refusal(elapsed_s, size)
        if refusal is not None:
            return self._refused(refusal, entry, elapsed_s)
        self._limiter.take(elapsed_s, size)
        headers = self._limit_headers(elapsed_s)
        return replace(reply, headers={**headers, **reply.headers}) if headers else reply

    def _refused(self, refusal: Refusal, entry: Entry, elapsed_s: float) -> Reply:
        self.num_rejected += 1
        entry.refused = refusal.scope
        self._limiter.note_refused(elapsed_s)
        return refuse(
            refusal,
            headers=self._limit_headers(elapsed_s),
            retry_after=self._service.retry_after,
            say_why=self._service.say_why,
            delay_s=_REFUSAL_S,
        )

    def _limit_headers(self, elapsed_s: float) -> dict[str, str]:
        return limit_headers(self._limiter.standing(elapsed_s)) if self._service.has_headers else {}
