"""vLLM as trainings meet it: servers of Stillhouse's own, one a model, and routes that take adapters and weights."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.serving.admission import AdmissionController
from stillhouse.serving.app import create_app
from stillhouse.serving.completions import ServedModel
from stillhouse.serving.models import load_model
from stillhouse.serving.worker import ModelWorker

LOCK = threading.Lock()


class StandIn:
    """An ASGI application."""

    def __init__(self, ref: str, name: str) -> None:
        self._tokenizer = load_tokenizer(ref)
        self._name = name
        self._workers: list[ModelWorker] = []
        self._apps: dict[str, FastAPI] = {}
        self._load(name, ref)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        content = await Request(scope, receive).body()
        body = json.loads(content or b"{}") or {}
        response = self._changed(scope["path"], body)
        if response is not None:
            await response(scope, receive, send)
            return
        messages = iter([{"type": "http.request", "body": content}])

        async def again() -> Any:
            return next(messages, None) or await receive()

        await self._apps.get(body.get("model"), self._apps[self._name])(scope, again, send)

    def _changed(self, path: str, body: dict[str, Any]) -> Response | None:
        """The answer to a request that concerns all models; None to one that samples or scores."""
        name = body.get("lora_name", "")
        match path:
            case "/v1/models":
                others = self._apps.keys() - {self._name}
                return JSONResponse({"data": [{"id": self._name}, *({"id": n, "parent": self._name} for n in others)]})
            case "/v1/load_lora_adapter":
                if name in self._apps or not (Path(body["lora_path"]) / "adapter_config.json").is_file():
                    return JSONResponse({"error": {"message": f"{name!r} is loaded, or no adapter"}}, 400)
                self._load(name, body["lora_path"])
            case "/v1/unload_lora_adapter":
                if self._apps.pop(name, None) is None:
                    return JSONResponse({"error": {"message": f"no adapter {name!r}"}}, 404)
            case "/collective_rpc":
                self._apps.clear()
                self._load(self._name, body["kwargs"]["weights_path"])
            case "/reset_prefix_cache":
                pass
            case _:
                return None
        return JSONResponse({})

    def _load(self, name: str, ref: str) -> None:
        # One at a time: transformers prepares a model's class in a way that threads disturb.
        with LOCK:
            model = load_model(ref, device="cpu", num_threads=1)
        worker = ModelWorker(model, max_batch=64)
        served = ServedModel(
            *(name, self._tokenizer, stop_token_ids(self._tokenizer), model.config.vocab_size, worker.context_length)
        )
        self._apps[name] = create_app(served, AdmissionController(worker, max_batch=64, max_pending=64))
        self._workers.append(worker)
        worker.start()


@contextmanager
def serving(ref: str, name: str) -> Iterator[str]:
    """The base URL of a server in threads of this process: one of its own would import torch for seconds."""
    app = StandIn(ref, name)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()
            app.stop()
