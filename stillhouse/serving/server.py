"""Runs the server in this process until a signal."""

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING

import uvicorn

from stillhouse.chat.refs import GENERATION_FILE, gguf_in, resolve_model
from stillhouse.config.section import ChatTemplateKwargs
from stillhouse.errors import ConfigError, EndpointError
from stillhouse.keys import unset

if TYPE_CHECKING:
    from fastapi import FastAPI
    from transformers import PreTrainedModel

    from stillhouse.serving.models import Device, Dtype
    from stillhouse.serving.worker import ModelWorker


def serve(
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    name: str | None = None,
    chat_template_kwargs: ChatTemplateKwargs = MappingProxyType({}),
    device: "Device" = "auto",
    dtype: "Dtype" = "auto",
    num_threads: int | None = None,
    max_batch: int = 64,
    max_pending: int = 256,
    api_key_env: str | None = None,
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serve a model over HTTP until SIGTERM or SIGINT.

    Once it answers, print one JSON line on standard output: `{"url": "http://HOST:PORT/v1", "model": NAME}`. The
    options are those of `stillhouse serve`. `chat_template_kwargs` are defaults of the template's variables, which a
    request may give other values; on a CPU, `num_threads` None leaves their number to torch.

    Raise ConfigError if the model cannot be loaded or the variable is not set, EndpointError if the address cannot be
    listened on.
    """
    # Cheap checks first: importing torch takes seconds.
    api_key = None if api_key_env is None else os.environ.get(api_key_env)
    if api_key_env is not None and not api_key:
        raise ConfigError(f"--api-key-env: {unset(api_key_env)}")
    path = resolve_model(model)
    listener = _listen(host, port)
    from transformers import GenerationConfig
    from transformers.utils import logging

    from stillhouse.chat.next_turn import stop_token_ids
    from stillhouse.chat.tokenizer import load_tokenizer
    from stillhouse.http.own_origin import names_of
    from stillhouse.serving.admission import AdmissionController
    from stillhouse.serving.app import create_app
    from stillhouse.serving.gguf import GgufModel
    from stillhouse.serving.models import load_model
    from stillhouse.serving.routes import ServedModel
    from stillhouse.serving.worker import ModelWorker

    logging.disable_progress_bar()
    tokenizer = load_tokenizer(path, chat_template_kwargs)
    gguf = gguf_in(Path(path))
    loaded: PreTrainedModel | GgufModel
    if gguf is None:
        loaded = load_model(path, device=device, dtype=dtype, num_threads=num_threads)
        generation = loaded.generation_config
    elif dtype == "auto":
        loaded = GgufModel(gguf, device=device, num_threads=num_threads, max_batch=max_batch)
        generation = GenerationConfig.from_pretrained(path) if (Path(path) / GENERATION_FILE).is_file() else None
    else:
        raise ConfigError(f"--dtype {dtype}: {gguf} is computed in the types in which it is stored; leave it out")
    try:
        worker = ModelWorker(loaded, max_batch=max_batch)
    except ValueError as error:
        raise ConfigError(f"model {model!r} cannot be served: {error}") from error
    served = ServedModel(
        name=name or model,
        tokenizer=tokenizer,
        stop_ids=stop_token_ids(tokenizer, generation),
        vocab_size=worker.vocab_size,
        context_length=worker.context_length,
    )
    admission = AdmissionController(worker, max_batch=max_batch, max_pending=max_pending)
    app = create_app(served, admission, api_key=api_key, names=names_of(host, allowed_hosts))
    worker.start()
    try:
        _Server(app, worker, served.name).run(sockets=[listener])
    finally:
        worker.stop()
        listener.close()


class _Server(uvicorn.Server):
    """Prints its address once it listens, and ends unfinished completions on a signal."""

    def __init__(self, app: "FastAPI", worker: "ModelWorker", name: str) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2))
        self._engine = worker
        self._name = name

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets
        host, port = sockets[0].getsockname()[:2]
        address = f"[{host}]" if ":" in host else host
        sys.stdout.write(json.dumps({"url": f"http://{address}:{port}/v1", "model": self._name}) + "\n")
        sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._engine.stop()
        super().handle_exit(sig, frame)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        problem = f"cannot listen on {host}:{port}: {error}; choose another port, or 0 for a free one"
        raise EndpointError(problem) from error
