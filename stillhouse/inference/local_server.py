"""Model servers of this process: one for each model in use, shared by all its users at the same time.

They are vLLM's or this project's own, by `runtime.engine`. Free of torch: the model lives in the server's process,
whose memory (a GPU's above all) is freed with the last user.
"""

import json
import logging
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final, NamedTuple

from stillhouse.chat.refs import resolve_model
from stillhouse.config import RuntimeConfig
from stillhouse.config.section import ChatTemplateKwargs
from stillhouse.errors import EndpointError
from stillhouse.inference.vllm.environment import vllm_python
from stillhouse.inference.vllm.launch import Launch, started
from stillhouse.inference.vllm.process import START_TIMEOUT_S, VllmProcess
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.types import JsonObject

_MAX_BATCH: Final = 64
_MAX_PENDING: Final = 64
CAPACITY: Final = _MAX_BATCH + _MAX_PENDING
"""Requests that a server takes at once: those that it samples, and as many that wait, so that none of its slots is."""
_LAST_WORDS_BYTES: Final = 4000
_START_TIMEOUT_S: Final = 300.0
_logger = logging.getLogger("stillhouse.local_server")


@dataclass
class _SharedServer:
    """One server; every field is read and written under the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    num_users: int = 0
    process: GuardedProcess | VllmProcess | None = None
    url: str = ""
    capacity: int = 0
    stderr: BinaryIO = field(default_factory=BytesIO)

    def take_vllm(self, launch: Launch, timeout_s: float) -> bool:
        """Start vLLM; return False, and change nothing, where another engine may stand in for it and has to."""
        if not (processes := started(launch, timeout_s)):
            return False
        [process] = processes
        self.process, self.url, self.stderr = process, process.url, process.log.open("rb")
        # As many wait as are sampled, as with the own server.
        self.capacity = 2 * launch.max_sequences
        return True

    def stop(self, ref: str) -> None:
        """Stop the process, and tell what it said last if it ended by itself."""
        assert self.process is not None
        code = self.process.poll()
        self.process.stop()
        self.process = None
        with self.stderr:
            if code is not None:
                _logger.error("the server of %s ended with code %s: %s", ref, code, _end_of(self.stderr.read()))


class Served(NamedTuple):
    """A model that is served."""

    url: str
    """`http://127.0.0.1:PORT/v1`, where it answers under its ref."""
    capacity: int
    """Requests that the server takes at once."""
    comes_back: bool
    """Whether it is started again when it ends."""


_servers: dict[str, _SharedServer] = {}
_registry = threading.Lock()


@contextmanager
def served_model(
    ref: str,
    runtime: RuntimeConfig,
    chat_template_kwargs: ChatTemplateKwargs = MappingProxyType({}),
    *,
    start_timeout_s: float | None = None,
) -> Iterator[Served]:
    """Yield a server of the model that `ref` names.

    The first user starts the server, the last one stops it, and a server that has died is replaced for the next user; a
    vLLM server at once. Blocks while the server starts (some seconds; vLLM takes minutes): an asyncio caller enters it
    by `await asyncio.to_thread(stack.enter_context, served_model(...))`.

    `chat_template_kwargs` are defaults of its template's variables. `start_timeout_s` None is the engine's own. Raise
    ConfigError if `ref` names nothing or there is no vLLM though it is wanted, EndpointError with the server's last
    words if it does not come up.
    """
    python = vllm_python(runtime)
    options = {
        "model": resolve_model(ref),
        "name": ref,
        "device": runtime.device,
        "num_threads": runtime.num_threads,
        "max_batch": _MAX_BATCH,
        "max_pending": _MAX_PENDING,
        "chat_template_kwargs": dict(chat_template_kwargs),
    }
    key = json.dumps([str(python), options])
    with _registry:
        shared = _servers.setdefault(key, _SharedServer())
    with shared.lock:
        if shared.process is None or shared.process.poll() is not None:
            if shared.process is not None:
                shared.stop(ref)
            launch = None if python is None else Launch(python, ref, runtime, chat_template_kwargs)
            if launch is None or not shared.take_vllm(launch, start_timeout_s or START_TIMEOUT_S):
                timeout_s = start_timeout_s or _START_TIMEOUT_S
                shared.process, shared.url, shared.stderr = _start(ref, options, runtime.thread_variables, timeout_s)
                shared.capacity = CAPACITY
        shared.num_users += 1
        served = Served(shared.url, shared.capacity, isinstance(shared.process, VllmProcess))
    try:
        yield served
    finally:
        with shared.lock:
            shared.num_users -= 1
            if shared.num_users == 0 and shared.process is not None:
                shared.stop(ref)


def _start(
    ref: str, options: JsonObject, variables: Mapping[str, str], timeout_s: float
) -> tuple[GuardedProcess, str, BinaryIO]:
    with tempfile.TemporaryDirectory(prefix="stillhouse-serving-") as folder:
        log = Path(folder) / "stderr"
        log.touch()
        process = GuardedProcess(
            "stillhouse.serving", [json.dumps({**options, "log_file": str(log)})], variables, needs_torch=True
        )
        # A server that hangs while loading is ended, and with it the wait for its first line.
        watchdog = threading.Timer(timeout_s, process.stop, kwargs={"grace_s": 0.0})
        watchdog.daemon = True
        watchdog.start()
        try:
            line = process.lines.readline()
        except BaseException:  # an interrupt above all: nothing else would stop the process
            process.stop()
            raise
        finally:
            watchdog.cancel()
        if not line:
            process.stop()
            raise EndpointError(
                f"the server of model {ref!r} did not come up within {timeout_s:g} s and ended with code "
                f"{process.poll()}; its last words: {_end_of(log.read_bytes())}"
            )
        # The server goes on to write to the file when its folder is gone.
        return process, json.loads(line)["url"], log.open("rb")


def _end_of(said: bytes) -> str:
    return said[-_LAST_WORDS_BYTES:].decode(errors="replace").strip() or "(none)"
