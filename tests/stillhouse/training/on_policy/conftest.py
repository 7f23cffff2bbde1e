"""The student and its tokenizer, and our own servers of the embedded models over real HTTP."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig
from stillhouse.serving.admission import AdmissionController
from stillhouse.serving.app import create_app
from stillhouse.serving.models import load_model
from stillhouse.serving.routes import ServedModel
from stillhouse.serving.worker import ModelWorker
from stillhouse.training.job import TrainJob
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student


@contextmanager
def serving(ref: str, name: str) -> Iterator[str]:
    """The base URL of a server in threads of this process: one of its own would import torch for seconds."""
    tokenizer = load_tokenizer(ref)
    model = load_model(ref, device="cpu", num_threads=1)
    worker = ModelWorker(model, max_batch=64)
    served = ServedModel(name, tokenizer, stop_token_ids(tokenizer), model.config.vocab_size, worker.context_length)
    app = create_app(served, AdmissionController(worker, max_batch=64, max_pending=64), allow_updates=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        worker.start()
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()
            worker.stop()


@pytest.fixture(scope="session")
def student() -> Student:
    """The embedded student with all of its weights to train; no test leaves them changed."""
    config = StudentConfig(parameters="full", dtype="float32", max_length=512)
    return load_student("embedded:student", config, torch.device("cpu"), seed=0)


@pytest.fixture
def new_job(prompts_file: Path, metadata_file: Path, runtime: RuntimeConfig, tmp_path: Path) -> Callable[..., TrainJob]:
    """Makes on-policy jobs of the embedded student and teacher."""

    def make(settings: OnPolicyConfig, folder: Path = tmp_path, **fields: Any) -> TrainJob:
        paths = {"prompts_file": prompts_file, "metadata_file": metadata_file}
        paths |= {"work_dir": folder, "output_dir": folder / "student"}
        refs = {"student_ref": "embedded:student", "teacher_ref": "embedded:teacher"}
        return TrainJob(method="on_policy", on_policy=settings, runtime=runtime, **{**refs, **paths, **fields})

    return make


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("embedded:student")


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[str, str], str]]:
    """Serves the model of a ref under a name, as vLLM does with updates allowed, until the end of the module."""
    with ExitStack() as stack:
        yield lambda ref, name: stack.enter_context(serving(ref, name))
