"""The process that runs an answer. It is sent arguments and gives values; what they are compared with is elsewhere."""

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


def run_answer(line: MessageChannel) -> int:
    """Runs the code that the first message holds, and gives the exit code of the process.

    With `script` it is run as a program, on the files 0 and 1. Else it is imported, and the tests' requests are served
    until they hang up. What keeps it from running to its end is told as `["failed", reason]`.
    """
    asked: JsonObject = line.receive()
    try:
        atexit._clear()
        sys.path.insert(0, os.getcwd())
        sys.argv = [FILE]
        if asked["script"]:
            _run_script(asked["code"])
        else:
            _Service(line).run(asked["code"])
        return 0
    except ChannelClosed:
        return 0
    # Whatever the code raises, SystemExit and MemoryError among it, is its outcome.
    except BaseException as error:
        line.send(["failed", reason_of(error)])
        return 1


def _run_script(code: str) -> None:
    for name, number, mode in (("stdin", 0, "rb"), ("stdout", 1, "wb")):
        _replace_stream(name, io.TextIOWrapper(os.fdopen(os.dup(number), mode), "utf-8", "replace"))
    try:
        _execute(code, _module("__main__"))
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    # What the interpreter does at its end.
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
    """Serves the tests' requests, each with one reply; in between, the answer may ask for objects of the tests'."""

    def __init__(self, line: MessageChannel) -> None:
        self._line = line
        self._objects = SolutionObjects(self._ask_tests)
        self._printed = io.StringIO()

    def run(self, code: str) -> None:
        """Imports the code, says which names it defines, and serves requests until the tests hang up."""
        _replace_stream("stdout", self._printed)
        _replace_stream("stdin", _Input(self._ask_tests))
        module = _module(SOLUTION)
        _execute(code, module)
        self._objects.number_of(module)
        names = [name for name in vars(module) if isinstance(name, str) and not name.startswith("__")]
        self._line.send(["ready", names, self._take_printed()])
        while True:
            self._serve(self._line.receive())

    def _ask_tests(self, request: list[Any]) -> Any:
        """What the tests reply to a request for one of their objects."""
        self._line.send(["ask", *request, self._take_printed()])
        while True:
            message = self._line.receive()
            if message[0] != "reply":
                self._serve(message)
            elif message[1] == "raise":
                raise self._objects.error_of_tests(message[2])
            else:
                return self._objects.decode(message[2])

    def _serve(self, request: list[Any]) -> None:
        try:
            name, forms, named = request
            given = [self._objects.decode(form) for form in forms]
            options = {key: self._objects.decode(form) for key, form in named}
            before = self._forms(given) if name == "call" else []
            value = OPERATIONS[name](*given, **options)
            changed = self._changes(before, self._forms(given)) if before else []
            reply = ["return", self._objects.encode(value), changed]
            self._line.send([*reply, self._take_printed()])
        except ChannelClosed:
            raise
        # Exceptions are a function's results as much as values are.
        except BaseException as error:
            self._line.send(["raise", self._objects.encode_error(error), self._take_printed()])

    def _forms(self, given: list[Any]) -> list[Any]:
        """The mutable arguments as they are now; none where one cannot be told."""
        try:
            return [self._objects.encode(value) if is_mutable(value) else None for value in given[1:]]
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
    """Standard input, which is that of the tests."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        return str(self._ask(["input"]))

    def read(self, size: int | None = -1, /) -> str:
        return "".join(iter(self.readline, ""))
