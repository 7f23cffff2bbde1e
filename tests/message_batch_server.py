"""Anthropic's Message Batches on loopback, with the package's own types as the judge."""

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse

from tests.batch_server import BatchServer
from tests.fake_messages import FakeMessages


class MessageBatchServer(BatchServer):
    """Answers each request with its own question, on demand; `results` gives what is not a success, by question."""

    def __init__(self) -> None:
        super().__init__()
        self.model = FakeMessages(lambda messages: f"answer to {messages[-1]['content'][0]['text']}\u2028end")
        self.results: dict[str, dict[str, Any]] = {}
        self.versions: set[str | None] = set()

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.post("/v1/messages/batches", self.create),
            web.get("/v1/messages/batches", self.list),
            web.get("/v1/messages/batches/{id}", self.retrieve),
            web.get("/v1/messages/batches/{id}/results", self.content),
        ]

    @property
    def asked(self) -> list[str]:
        return [question(request) for batch in self.batches for request in batch["requests"]]

    async def create(self, request: web.Request) -> web.Response:
        self.versions.add(request.headers.get("anthropic-version"))
        assert (await request.json()).keys() == {"requests"}
        return await super().create(request)

    async def list(self, request: web.Request) -> web.Response:
        batches = [self.shown(batch) for batch in self.batches[::-1]]
        return web.json_response({"data": batches, "has_more": False, "first_id": None, "last_id": None})

    async def retrieve(self, request: web.Request) -> web.Response:
        for batch in self.batches:
            if batch["id"] == request.match_info["id"]:
                if self.finish.is_set() and batch["status"] == "in_progress":
                    self.end(batch)
                return web.json_response(self.shown(batch))
        error = {"type": "not_found_error", "message": "no such batch"}
        return web.json_response({"type": "error", "error": error}, status=404)

    async def content(self, request: web.Request) -> web.Response:
        self.versions.add(request.headers.get("anthropic-version"))
        return await super().content(request)

    def shown(self, batch: dict[str, Any]) -> dict[str, Any]:
        num, has_ended = len(batch["requests"]), batch["status"] == "completed"
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        shown = {
            "id": batch["id"],
            "type": "message_batch",
            "processing_status": "ended" if has_ended else "in_progress",
            "request_counts": {**counts, "succeeded" if has_ended else "processing": num},
            "created_at": "2033-05-18T03:33:20Z",
            "expires_at": "2033-05-19T03:33:20Z",
            "ended_at": "2033-05-18T03:40:00Z" if has_ended else None,
            "results_url": f"{self.url}/messages/batches/{batch['id']}/results" if has_ended else None,
        }
        MessageBatch.model_validate(shown)
        return shown

    def end(self, batch: dict[str, Any]) -> None:
        rows = []
        for request in reversed(batch["requests"]):
            assert (problem := self.model.problem(request["params"])) is None, problem
            success = {"type": "succeeded", "message": self.model.message(request["params"])}
            result = self.results.get(question(request), success)
            rows.append({"custom_id": request["custom_id"], "result": result})
            MessageBatchIndividualResponse.model_validate(rows[-1])
        self.files[batch["id"]] = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
        batch["status"] = "completed"


def question(request: dict[str, Any]) -> str:
    return str(request["params"]["messages"][-1]["content"][0]["text"])
