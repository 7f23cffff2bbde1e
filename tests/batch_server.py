"""OpenAI's batch endpoint on loopback, which ends batches on demand."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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

    @property
    def asked(self) -> list[str]:
        """Every question that was billed, in order."""
        return [
            json.loads(line)["body"]["messages"][-1]["content"]
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
        return web.json_response(batch)

    async def list(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.batches[::-1], "has_more": False})

    async def retrieve(self, request: web.Request) -> web.Response:
        for batch in self.batches:
            if batch["id"] == request.match_info["id"]:
                if self.finish.is_set() and batch["status"] == "in_progress":
                    self._end(batch)
                return web.json_response(batch)
        return web.json_response({"error": {"message": "no such batch"}}, status=404)

    async def content(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["id"]])

    def _end(self, batch: dict[str, Any]) -> None:
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


def answered(line: dict[str, Any]) -> dict[str, Any]:
    body = {
        "id": "c",
        "model": line["body"]["model"],
        "choices": [
            {
                "finish_reason": "stop",
                "message": {
                    "role": "assistant",
                    "content": "answer to " + line["body"]["messages"][-1]["content"] + "\u2028end",
                },
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 20},
    }
    response = {"status_code": 200, "request_id": "req-" + line["custom_id"], "body": body}
    return {"id": "r", "custom_id": line["custom_id"], "response": response, "error": None}


@contextmanager
def serve_batches() -> Iterator[BatchServer]:
    """A server in a thread of its own."""
    server = BatchServer()
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/files", server.upload)
        app.router.add_get("/v1/files/{id}/content", server.content)
        app.router.add_post("/v1/batches", server.create)
        app.router.add_get("/v1/batches", server.list)
        app.router.add_get("/v1/batches/{id}", server.retrieve)
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
