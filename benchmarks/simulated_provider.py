"""A provider of completions that answers from a script, fails on demand, and keeps a ledger.

It speaks HTTP over asyncio streams itself, since no web framework lets an application reset a connection, cut a body or
fall silent, and it has to stay ahead of every client measured against it. It runs in a thread of its own on loopback.

    with SimulatedProvider(lambda asked: Reply(completion("hello"))) as provider:
        ... ask provider.url ...
        assert len(provider.ledger) == 1
"""

import asyncio
import hashlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

Fault = Literal["none", "reset", "cut", "hang"]
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request is answered with."""

    body: dict[str, Any] | bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Time before the answer."""
    fault: Fault = "none"
    """`reset` drops the connection, `cut` stops in the middle of the body, `hang` never answers."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the script sees it."""

    body: dict[str, Any]
    digest: str
    attempt: int
    """How often the same request came before."""
    index: int
    """How many requests of any kind came before."""
    authorization: str


@dataclass(slots=True)
class Entry:
    """One line of the ledger."""

    digest: str
    arrived_at: float
    """`time.time()`, comparable between processes of one machine."""
    status: int | None = None
    answered_at: float | None = None
    """When the last byte was handed over; None for what was never answered."""
    billed: bool = False
    """Whether tokens were sampled: an answer with status 200, however it got through."""


Script = Callable[[Asked], Reply]


class SimulatedProvider:
    """An OpenAI-compatible endpoint at `url`, as a context manager.

    Args:
        script: what to answer; called in the server's thread, so it must not block.
        max_in_flight: requests served at once; more are answered with 429. None sets no limit. May be changed live.
        retry_after_s: what those 429s say in Retry-After; None leaves it out.
    """

    def __init__(self, script: Script, *, max_in_flight: int | None = None, retry_after_s: float | None = None) -> None:
        self.script = script
        self.max_in_flight = max_in_flight
        self.retry_after_s = retry_after_s
        self.ledger: list[Entry] = []
        self.requests: list[dict[str, Any]] = []
        self.in_flight = 0
        self.peak_in_flight = 0
        self.num_rejected = 0
        self._seen: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="simulated-provider", daemon=True)

    @property
    def num_billed(self) -> int:
        """Requests for which tokens were sampled."""
        return sum(entry.billed for entry in self.ledger)

    @property
    def billed(self) -> Counter[str]:
        """How often each distinct request was billed."""
        return Counter(entry.digest for entry in self.ledger if entry.billed)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._stop = asyncio.Event()
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, sock=self._socket)
        await self._stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        asked = self._note(body, headers.get("authorization", ""))
        entry = self.ledger[-1]
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            reply = self._reply(asked)
            if reply.delay_s:
                await asyncio.sleep(reply.delay_s)
            if reply.fault == "hang":
                await asyncio.Event().wait()
        finally:
            self.in_flight -= 1
        entry.status, entry.billed = reply.status, reply.status == 200
        kept = await _answer(writer, reply)
        entry.answered_at = time.time()
        return kept

    def _note(self, body: bytes, authorization: str) -> Asked:
        digest = hashlib.sha256(body).hexdigest()
        asked = Asked(json.loads(body), digest, self._seen[digest], len(self.ledger), authorization)
        self._seen[digest] += 1
        self.ledger.append(Entry(digest, time.time()))
        self.requests.append(asked.body)
        return asked

    def _reply(self, asked: Asked) -> Reply:
        if self.max_in_flight is None or self.in_flight <= self.max_in_flight:
            return self.script(asked)
        self.num_rejected += 1
        headers = {} if self.retry_after_s is None else {"retry-after": f"{self.retry_after_s:g}"}
        return error(429, "too many requests at once", code="rate_limit_exceeded", headers=headers)


async def _answer(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    if reply.fault == "reset":
        raw = writer.get_extra_info("socket")
        # Zero linger makes close() send RST.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        return False
    lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Status')}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    lines.append(f"content-length: {len(body)}")
    sent = body[: len(body) // 2] if reply.fault == "cut" else body
    writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + sent)
    await writer.drain()
    return reply.fault != "cut"


def completion(
    content: str | None = None,
    *,
    tool_calls: Sequence[tuple[str, str]] = (),
    finish_reason: str | None = None,
    completion_tokens: int | None = 5,
    message: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of a chat completion in OpenAI's form.

    Args:
        content: the answer; None where there are only calls.
        tool_calls: (name, arguments as JSON text) of each call.
        finish_reason: None takes `tool_calls` or `stop`.
        completion_tokens: reported usage; None reports none.
        message: further keys of the message.
    """
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(tool_calls)
    ]
    said = {"role": "assistant", "content": content, "refusal": None, **({"tool_calls": calls} if calls else {})}
    usage = {"prompt_tokens": 7, "completion_tokens": completion_tokens, "total_tokens": 7 + (completion_tokens or 0)}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "simulated-1",
        "choices": [
            {
                "index": 0,
                "message": {**said, **(message or {})},
                "finish_reason": finish_reason or ("tool_calls" if calls else "stop"),
            }
        ],
        **({} if completion_tokens is None else {"usage": usage}),
    }


def error(
    status: int,
    message: str,
    *,
    code: str | int | None = None,
    kind: str | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """An error in OpenAI's form."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return Reply(body, status, headers or {})
