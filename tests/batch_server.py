"""OpenAI's batch endpoint on loopback, which ends batches on demand."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import web


class BatchServer:
    """OpenAI's batch endpoint on loopback: answers each request with its own question, on demand."""

    def __init__(self) -> None:
        self.url = ""
        self.batches: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.finish = threading.Event()
        """Batches end from now on."""
        self.answer_create = threading.Event()
        """Until then a created batch is kept, and its id is not returned."""
        self.answer_create.set()
        self.ends_as = "completed"
        self.errors: list[dict[str, str]] = []
        self.refuse_create: tuple[int, dict[str, Any]] | None = None
        self.lose_create_answer = False
        self.line: Callable[[dict[str, Any]], dict[str, Any] | None] = answered

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.post("/v1/files", self.upload),
            web.get("/v1/files/{id}/content", self.content),
            web.post("/v1/batches", self.create),
            web.get("/v1/batches", self.list),
            web.get("/v1/batches/{id}", self.retrieve),
        ]

    @property
    def asked(self) -> list[str]:
        """Every question that was billed, in order."""
        return [
            question_of(json.loads(line)["body"])
            for batch in self.batches
            for line in self.files[batch["input_file_id"]].splitlines()
        ]

    async def upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert form["purpose"] == "batch"
        name = f"file-{len(self.files)}"
        self.files[name] = form["file"].file.read()  # type: ignore[union-attr]
        return web.json_response({"id": name, "object": "file", "purpose": "batch"})

    async def create(self, request: web.Request) -> web.Response:
        if self.refuse_create is not None:
            (status, body), self.refuse_create = self.refuse_create, None
            return web.json_response(body, status=status)
        body = await request.json()
        batch = {
            "id": f"batch-{len(self.batches)}",
            "object": "batch",
            "created_at": 2_000_000_000,
            "status": "in_progress",
            **body,
        }
        self.batches.append(batch)
        while not self.answer_create.is_set():
            await asyncio.sleep(0.01)
        if self.lose_create_answer:
            self.lose_create_answer = False
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(self.shown(batch))

    def shown(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return what is told of a batch."""
        return batch

    async def list(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.batches[::-1], "has_more": False})

    async def retrieve(self, request: web.Request) -> web.Response:
        for batch in self.batches:
            if batch["id"] == request.match_info["id"]:
                if self.finish.is_set() and batch["status"] == "in_progress":
                    self.end(batch)
                return web.json_response(batch)
        return web.json_response({"error": {"message": "no such batch"}}, status=404)

    async def content(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["id"]])

    def end(self, batch: dict[str, Any]) -> None:
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
        rows = [row for line in lines if (row := self.line(line)) is not None]
        # The provider answers in an order of its own.
        rows.reverse()
        for kind, wanted in (("output", True), ("error", False)):
            chosen = [row for row in rows if (row["error"] is None) is wanted]
            if chosen:
                name = f"{kind}-{batch['id']}"
                # A line separator inside an answer is no end of a line.
                text = "\n".join(json.dumps(row, ensure_ascii=False) for row in chosen)
                self.files[name] = text.encode()
                batch[f"{kind}_file_id"] = name
        batch["status"] = self.ends_as
        if self.errors:
            batch["errors"] = {"object": "list", "data": self.errors}


BatchServerT = TypeVar("BatchServerT", bound=BatchServer)


def question_of(body: dict[str, Any]) -> str:
    return str(body["input" if "input" in body else "messages"][-1]["content"])


def answered(line: dict[str, Any]) -> dict[str, Any]:
    text = f"answer to {question_of(line['body'])}\u2028end"
    if line["url"] == "/v1/responses":
        part = {"type": "output_text", "annotations": [], "text": text}
        item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
        answer: dict[str, Any] = {"object": "response", "status": "completed", "output": [item]}
        usage = {"input_tokens": 10, "output_tokens": 20}
    else:
        answer = {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}
        usage = {"prompt_tokens": 10, "completion_tokens": 20}
    body = {"id": "c", "model": line["body"]["model"], "usage": usage, **answer}
    response = {"status_code": 200, "request_id": "req-" + line["custom_id"], "body": body}
    return {"id": "r", "custom_id": line["custom_id"], "response": response, "error": None}


@contextmanager
def serve_batches(server: BatchServerT) -> Iterator[BatchServerT]:
    """The server, in a thread of its own."""
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_routes(server.routes())
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        started.set()
        await stop.wait()
        server.answer_create.set()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    if not started.wait(10):
        raise RuntimeError("the batch endpoint did not start within 10 s")
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
