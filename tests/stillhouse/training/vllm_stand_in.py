"""vLLM as trainings meet it: servers of Stillhouse's own, one a model, and routes that take adapters and weights.

With `--enable-scale-out` it also scores given ids, in the form of vLLM 0.32. Also a Python that starts it as a run
starts vLLM (`stand_in_python`).
"""

import argparse
import json
import socket
import sys
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
from stillhouse.serving.protocol import MAX_TOP_LOGPROBS
from stillhouse.serving.worker import ModelWorker

LOCK = threading.Lock()


class StandIn:
    """An ASGI application."""

    def __init__(self, ref: str, name: str, *, scales_out: bool = False) -> None:
        self._tokenizer = load_tokenizer(ref)
        self._name = name
        self._workers: list[ModelWorker] = []
        self._apps: dict[str, FastAPI] = {}
        self._weight_version = "default"
        self._scales_out = scales_out
        self._models: dict[str, Any] = {}
        self.load(name, ref)

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
        # As vLLM before 0.33, which does not tell.
        body.pop("return_weight_versions", None)
        messages = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

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
            case "/update_weight_version":
                self._weight_version = body["new_version"]
            case "/weight_info":
                return JSONResponse({"weight_version": self._weight_version})
            case "/v1/load_lora_adapter":
                if name in self._apps or not (Path(body["lora_path"]) / "adapter_config.json").is_file():
                    return JSONResponse({"error": {"message": f"{name!r} is loaded, or no adapter"}}, 400)
                self.load(name, body["lora_path"])
            case "/v1/unload_lora_adapter":
                if self._apps.pop(name, None) is None:
                    return JSONResponse({"error": {"message": f"no adapter {name!r}"}}, 404)
            case "/collective_rpc":
                self._apps.clear()
                self.load(self._name, body["kwargs"]["weights_path"])
            case "/pause" | "/resume":
                pass
            case "/inference/v1/generate":
                return self._generated(body)
            case _:
                return None
        return JSONResponse({})

    def _generated(self, body: dict[str, Any]) -> Response:
        """A scoring request's answer, with what vLLM checks: its `SamplingParams` and `InputProcessor`."""
        if not self._scales_out:
            message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
            return _refusal(message, 403, "PermissionDeniedError")
        model, ids, asked = self._models[body["model"]], body["token_ids"], body["sampling_params"]
        start, rows = asked["prompt_logprob_start"], asked["prompt_logprob_token_ids"]
        width = max(map(len, rows), default=0)
        if asked["max_tokens"] != 1 or not width or len(rows) != len(ids) - 1 - start:
            return _refusal(f"prompt_logprob_token_ids has {len(rows)} rows", 400)
        if width > MAX_TOP_LOGPROBS:
            return _refusal(f"Requested {width} token ids per row. Set max_logprobs (--max-logprobs)", 400)
        given = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
        if not -1 <= int(given.min()) <= int(given.max()) < model.config.vocab_size:
            return _refusal("prompt_logprob_token_ids contain out-of-vocab token ids", 400)
        with torch.inference_mode():
            logprobs = model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
        found = logprobs[start:].gather(1, given.clamp_min(0)).masked_fill(given < 0, -torch.inf)
        buffer = BytesIO()
        np.save(buffer, found.numpy(), allow_pickle=False)
        best, entries = logprobs.topk(asked["prompt_logprobs"]), [None]
        for target, *row in zip(ids[1:], best.indices.tolist(), best.values.tolist(), strict=True):
            known = dict(zip(*row, strict=True)) | {target: float(logprobs[len(entries) - 1, target])}
            entries.append({str(token): {"logprob": value, "rank": 1} for token, value in known.items()})
        choice = {"index": 0, "logprobs": None, "finish_reason": "length", "token_ids": [int(logprobs[-1].argmax())]}
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
        return JSONResponse(
            {
                "request_id": uuid.uuid4().hex,
                "model": body["model"],
                "created": int(time.time()),
                "usage": usage,
                "prompt_logprobs": entries,
                "prompt_token_id_logprobs": b64encode(buffer.getvalue()).decode(),
                "output_mode": "tokens",
                "choices": [choice],
            }
        )

    def load(self, name: str, ref: str) -> None:
        # One at a time: transformers prepares a model's class in a way that threads disturb.
        with LOCK:
            model = self._models[name] = load_model(ref, device="cpu", num_threads=1)
        worker = ModelWorker(model, max_batch=64)
        served = ServedModel(
            *(name, self._tokenizer, stop_token_ids(self._tokenizer), model.config.vocab_size, worker.context_length)
        )
        self._apps[name] = create_app(served, AdmissionController(worker, max_batch=64, max_pending=64))
        self._workers.append(worker)
        worker.start()


def _refusal(message: str, status: int, kind: str = "BadRequestError") -> Response:
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


@contextmanager
def serving(ref: str, name: str, port: int = 0, *, scales_out: bool = False) -> Iterator[str]:
    """The base URL of a server in threads of this process: one of its own would import torch for seconds."""
    app = StandIn(ref, name, scales_out=scales_out)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()
            app.stop()


def stand_in_python(folder: Path, *, version: str = "0.32.0", refuses: str | None = None) -> str:
    """A program that is asked for the version of vLLM and starts it, as the Python of its environment is.

    What it is told to serve is in `folder/arguments`, a line a start; it `refuses` by writing an error.
    """
    root = Path(__file__).resolve().parents[3]
    serves = f'PYTHONPATH={root} exec {sys.executable} -m tests.stillhouse.training.vllm_stand_in "$@"'
    if refuses is not None:
        serves = f"echo Traceback; echo '{refuses}'; echo 'RuntimeError: Engine core initialization failed.'; exit 1"
    program = folder / "python-of-vllm"
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$2" = -c ] && echo {version} && exit\n'
        f'echo "$VLLM_CPU_KVCACHE_SPACE $@" >> {folder}/arguments\n'
        f"{serves}\n"
    )
    program.chmod(0o755)
    return str(program)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--lora-modules")
    parser.add_argument("--port", type=int)
    parser.add_argument("--enable-scale-out", action="store_true")
    options, _ = parser.parse_known_args(sys.argv[sys.argv.index("serve") + 1 :])
    app = StandIn(options.model, options.served_model_name, scales_out=options.enable_scale_out)
    if options.lora_modules:
        adapter = json.loads(options.lora_modules)
        app.load(adapter["name"], adapter["path"])
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", timeout_graceful_shutdown=1)
    app.stop()


if __name__ == "__main__":
    main()
