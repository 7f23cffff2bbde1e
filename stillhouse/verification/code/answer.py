"""The process that runs an answer: it receives arguments and returns values, and never sees expected ones."""

import atexit
import io
import os
import sys
import threading
import types
from typing import Any

from stillhouse.types import JsonObject
from stillhouse.verification.code.channel import ChannelClosed, MessageChannel
from stillhouse.verification.code.objects import FILE, SOLUTION, SolutionObjects, reason_of
from stillhouse.verification.code.operations import OPERATIONS
from stillhouse.verification.code.wire import NotEncodable, is_mutable


def run_answer(channel: MessageChannel) -> int:
    """Runs the code in the first message, and returns the exit code of the process.

    With `script` it runs as a program on the files 0 and 1. Else it is imported, and serves the tests' requests until
    the channel closes. An exception is reported as `["failed", reason]`.
    """
    request: JsonObject = channel.receive()
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
        channel.send(["failed", reason_of(error)])
        return 1


def _run_script(code: str) -> None:
    for name, number, mode in (("stdin", 0, "rb"), ("stdout", 1, "wb")):
        _replace_stream(name, io.TextIOWrapper(os.fdopen(os.dup(number), mode), "utf-8", "replace"))
    try:
        _execute(code, _module("__main__"))
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


def _replace_stream(name: str, stream: io.TextIOBase) -> None:
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = FILE
    sys.modules[name] = module
    return module


def _execute(code: str, module: types.ModuleType) -> None:
    exec(compile(code, FILE, "exec", dont_inherit=True), vars(module))


class _Service:
    """Serves the tests' requests, with one reply each; meanwhile the answer may use objects of the tests."""

    def __init__(self, channel: MessageChannel) -> None:
        self._channel = channel
        self._objects = SolutionObjects(self._ask_tests)
        self._printed = io.StringIO()

    def run(self, code: str) -> None:
        """Imports the code, reports the names it defines, and serves requests until the channel closes."""
        _replace_stream("stdout", self._printed)
        _replace_stream("stdin", _Input(self._ask_tests))
        module = _module(SOLUTION)
        _execute(code, module)
        self._objects.number_of(module)
        names = [name for name in vars(module) if isinstance(name, str) and not name.startswith("__")]
        self._channel.send(["ready", names, self._take_printed()])
        while True:
            self._serve(self._channel.receive())

    def _ask_tests(self, request: list[Any]) -> Any:
        """The tests' reply to a request for one of their objects."""
        self._channel.send(["ask", *request, self._take_printed()])
        while True:
            message = self._channel.receive()
            if message[0] != "reply":
                self._serve(message)
            elif message[1] == "raise":
                raise self._objects.error_of_tests(message[2])
            else:
                return self._objects.decode(message[2])

    def _serve(self, request: list[Any]) -> None:
        try:
            operation, encoded_args, encoded_kwargs = request
            args = [self._objects.decode(form) for form in encoded_args]
            kwargs = {key: self._objects.decode(form) for key, form in encoded_kwargs}
            before = self._encoded_mutable(args) if operation == "call" else []
            value = OPERATIONS[operation](*args, **kwargs)
            changed = self._changes(before, self._encoded_mutable(args)) if before else []
            reply = ["return", self._objects.encode(value), changed]
            self._channel.send([*reply, self._take_printed()])
        except ChannelClosed:
            raise
        # Exceptions are results of a function, too.
        except BaseException as error:
            self._channel.send(["raise", self._objects.encode_error(error), self._take_printed()])

    def _encoded_mutable(self, args: list[Any]) -> list[Any]:
        """The encoded mutable arguments; empty if one cannot be encoded."""
        try:
            return [self._objects.encode(value) if is_mutable(value) else None for value in args[1:]]
        except (NotEncodable, RecursionError):
            return []

    @staticmethod
    def _changes(before: list[Any], after: list[Any]) -> list[Any]:
        return [[number, new] for number, (old, new) in enumerate(zip(before, after, strict=False)) if old != new]

    def _take_printed(self) -> str:
        text = self._printed.getvalue()
        self._printed.seek(0)
        self._printed.truncate()
        return text


class _Input(io.TextIOBase):
    """Standard input: that of the tests."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        return str(self._ask(["input"]))

    def read(self, size: int | None = -1, /) -> str:
        return "".join(iter(self.readline, ""))
