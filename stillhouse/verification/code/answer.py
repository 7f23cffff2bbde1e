"""The process that runs an answer: it receives arguments and returns values, and never sees expected ones."""

import atexit
import io
import os
import sys
import threading
import types
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from stillhouse.types import JsonObject
from stillhouse.verification.code.objects import FILE, SOLUTION, SolutionObjects, reason_of
from stillhouse.verification.code.wire import OPERATIONS, ChannelClosed, NotEncodable, is_mutable, receive, send


def run_answer(channel: Connection) -> int:
    """Run the code in the first message, and return the exit code of the process.

    With `script` it runs as a program on the files 0 and 1. Else it is imported, and serves the tests' requests until
    the channel closes. An exception is reported as `["failed", reason]`.
    """
    request: JsonObject = receive(channel)
    try:
        atexit._clear()
        sys.path.insert(0, os.getcwd())
        sys.argv = [FILE]
        if request["script"]:
            _run_script(request["code"])
        else:
            _Service(channel).run(request["code"])
        return 0
    except ChannelClosed:
        return 0
    # Whatever the code raises is its outcome, SystemExit and MemoryError included.
    except BaseException as error:
        send(channel, ["failed", reason_of(error)])
        return 1


def _run_script(code: str) -> None:
    for name, number, mode in (("stdin", 0, "rb"), ("stdout", 1, "wb")):
        stream = io.TextIOWrapper(os.fdopen(os.dup(number), mode), "utf-8", "replace")
        vars(sys).update({name: stream, f"__{name}__": stream})
    try:
        _execute(code, "__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    # As the interpreter does at its end.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for output in {sys.stdout, sys.__stdout__}:
        if output is not None:
            output.flush()


def _execute(code: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = FILE
    sys.modules[name] = module
    exec(compile(code, FILE, "exec", dont_inherit=True), vars(module))
    return module


class _Service:
    """Serves the tests' requests, with one reply each; meanwhile the answer may use objects of the tests."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._objects = SolutionObjects(self._ask_tests)
        self._printed = io.StringIO()

    def run(self, code: str) -> None:
        """Import the code, report the names it defines, and serve requests until the channel closes."""
        asked = _Input(self._ask_tests)
        vars(sys).update(stdout=self._printed, __stdout__=self._printed, stdin=asked, __stdin__=asked)
        module = _execute(code, SOLUTION)
        self._objects.number_of(module)
        self._send(["ready", *(name for name in vars(module) if isinstance(name, str) and not name.startswith("__"))])
        while True:
            self._serve(receive(self._channel))

    def _send(self, message: list[Any]) -> None:
        """Send a message, after what the answer has printed since the last one."""
        printed = self._printed.getvalue()
        if printed:
            self._printed.seek(0)
            self._printed.truncate()
            send(self._channel, ["print", printed])
        send(self._channel, message)

    def _ask_tests(self, *request: Any) -> Any:
        """Return the tests' reply to a request for one of their objects."""
        self._send(["ask", *request])
        while True:
            message = receive(self._channel)
            if message[0] == "error":
                raise self._objects.error_of_tests(*message[1:])
            if message[0] == "value":
                return self._objects.decode(message[1])
            self._serve(message)

    def _serve(self, request: list[Any]) -> None:
        try:
            operation, encoded_args, encoded_kwargs = request
            args = [self._objects.decode(form) for form in encoded_args]
            kwargs = {key: self._objects.decode(form) for key, form in encoded_kwargs.items()}
            before = self._encoded_mutable(args) if operation == "call" else []
            value = OPERATIONS[operation](*args, **kwargs)
            after = self._encoded_mutable(args) if before else []
            changes = [[n, new] for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new]
            self._send(["return", self._objects.encode(value), changes])
        except ChannelClosed:
            raise
        # Exceptions are results of a function, too.
        except BaseException as error:
            self._send(["raise", self._objects.encode_error(error)])

    def _encoded_mutable(self, args: list[Any]) -> list[Any]:
        """Return the encoded mutable arguments; empty if one cannot be encoded."""
        try:
            return [self._objects.encode(value) if is_mutable(value) else None for value in args[1:]]
        except (NotEncodable, RecursionError):
            return []


class _Input(io.TextIOBase):
    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        return str(self._ask("input"))

    def read(self, size: int | None = -1, /) -> str:
        return "".join(iter(self.readline, ""))
