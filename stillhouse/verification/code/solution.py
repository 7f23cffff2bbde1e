"""The answer's process as the tests see it: requests go out, plain values and proxies come back."""

import builtins
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from stillhouse.types import JsonObject
from stillhouse.verification.code import wire
from stillhouse.verification.code.names import TestNames, from_library
from stillhouse.verification.code.proxy import SolutionProxy, error_class, error_of
from stillhouse.verification.code.tests_objects import TestsObjects
from stillhouse.verification.result import VerificationResult


class TestsStopped(BaseException):
    """Ends the tests; `SolutionClient.verdict` says why, even if the tests catch this exception."""


class SolutionClient:
    """Operations of the tests on an answer, whose process `channel` connects to; `ended` as for `receive`."""

    def __init__(self, channel: Connection, ended: Any) -> None:
        self._channel = channel
        self._ended = ended
        self.names: TestNames | None = None
        """The names in the tests; None for calls alone."""
        self._lock = threading.RLock()
        self._classes: dict[str, SolutionProxy] = {}
        self._error_classes: dict[int, type[BaseException]] = {}
        self._tests_objects = TestsObjects(self._decode)
        self.module = SolutionProxy(self, 0)
        """The answer's module."""
        self._proxies = {0: self.module}
        self._requested_name: str | None = None
        self.was_asked = False
        """True once the tests have used anything of the answer."""
        self.verdict: VerificationResult | None = None
        """Wrong or unverified, if decided before the tests end; an empty note says that the process ended."""

    def load(self, code: str) -> list[str]:
        """Have the answer imported, and return the names it defines; raise TestsStopped if that fails."""
        return [str(name) for name in self._exchange({"code": code, "script": False})[1:]]

    def name(self, name: str) -> Any:
        """Return the value of a global name of the answer; raise AttributeError if there is none."""
        value = self.ask("get", self.module, name)
        if self.names is None or name not in self.names.classes or type(value) is not SolutionProxy:
            return value
        # A proxy of its own: only calls by this name construct, not other references to the same object.
        if name not in self._classes or self._classes[name]._number != value._number:
            self._classes[name] = SolutionProxy(self, value._number, is_class=True)
        return self._classes[name]

    def global_name(self, name: str) -> Any:
        """Return as `name` a name that the tests do not import: objects of a library are the tests' own copies."""
        library_object = None if self.names is None else self.names.library(name)
        if library_object is not None:
            return library_object
        self._requested_name = name
        try:
            value = self.ask("get", self.module, name)
        finally:
            self._requested_name = None
        return self.name(name) if type(value) is SolutionProxy else value

    def give_up(self, reason: str) -> NoReturn:
        """Leave the answer unverified: the tests need something that cannot be done across processes."""
        self._stop(None, reason)

    def ask(self, operation: str, *args: Any) -> Any:
        """Return the result of an operation in the answer's process; raise what it raises."""
        return self._request(operation, args, {}, self._decode)

    def call(self, target: SolutionProxy, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of calling an object; raise what the call raises."""
        return self._request("call", (target, *args), kwargs, self._constructed if target._is_class else self._decode)

    def _request(
        self, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any], decode_result: Callable[[Any], Any]
    ) -> Any:
        if self.verdict is not None:
            raise TestsStopped
        self.was_asked = True
        options = {key: self._encode(value) for key, value in kwargs.items()}
        # One thread of the tests at a time, also during callbacks.
        with self._lock:
            reply = self._exchange([operation, [self._encode(arg) for arg in args], options])
        try:
            outcome, result, *changes = reply
            if outcome == "return":
                for number, form in changes[0]:
                    _refresh(args[number + 1], self._decode(form))
                return decode_result(result)
            error = self._error(*result)
            if isinstance(error, StopIteration) and operation != "next":
                # As in a generator: it would end a loop of the tests early.
                error = RuntimeError("the answer raised StopIteration")
        except (ValueError, TypeError, LookupError, wire.Malformed, RecursionError, MemoryError) as problem:
            self._stop(False, "the answer's process gave something that is no value", problem)
        raise error

    def _constructed(self, form: Any) -> Any:
        """Return the result of calling a class: an object that may see the operands of the tests."""
        if isinstance(form, list) and form[0] == "derived" and wire.is_mutable(self._decode(form[1])):
            form = ["answer", form[2]]
        value = self._decode(form)
        if type(value) is SolutionProxy:
            object.__setattr__(value, "_is_constructed", True)
        return value

    def _exchange(self, request: list[Any] | JsonObject) -> list[Any]:
        """Return the reply to a request; meanwhile the answer may print, and use objects of the tests."""
        try:
            wire.send(self._channel, request)
            while True:
                message = wire.receive(self._channel, self._ended)
                if not isinstance(message, list) or not message:
                    raise wire.Malformed("a message is no list")
                kind, *content = message
                if kind == "failed":
                    self._stop(False, str(content[0]))
                elif kind == "print":
                    if sys.stdout is not None:
                        sys.stdout.write(str(content[0]).encode(errors="replace").decode())
                elif kind == "ask":
                    wire.send(self._channel, self._tests_objects.serve(*content))
                else:
                    return message
        except wire.ChannelClosed as error:
            self._stop(False, "", error)
        except (wire.Malformed, LookupError, TypeError) as error:
            self._stop(False, f"the answer's process sent no message of the right form: {error}", error)
        except wire.NotEncodable as error:
            self._stop(False, str(error), error)

    def _stop(self, verified: bool | None, note: str, cause: BaseException | None = None) -> NoReturn:
        if self.verdict is None:
            self.verdict = VerificationResult(verified, note)
        raise TestsStopped from cause

    def _proxy(self, number: int) -> SolutionProxy:
        if number not in self._proxies:
            self._proxies[number] = SolutionProxy(self, number)
        value = self._proxies[number]
        # The answer returned it now, whoever constructed it.
        object.__setattr__(value, "_is_constructed", False)
        return value

    def _decode(self, form: Any) -> Any:
        return wire.decode(form, self._decode_object, wire.MAX_DEPTH)

    def _decode_object(self, form: list[Any]) -> Any:
        kind, *rest = form
        if kind == "tests":
            return self._tests_objects[rest[0]]
        if kind == "type" and isinstance(getattr(builtins, rest[0]), type):
            return getattr(builtins, rest[0])
        if kind == "derived":
            return _derived(self._decode(rest[0]), self._proxy(int(rest[1])))
        if kind == "error":
            return error_class(int(rest[0]), rest[1], self._error_classes)
        if kind == "coroutine":
            return self._wait_for(self._proxy(int(rest[0])))
        if kind == "imported" and self._requested_name is not None:
            library = from_library(str(rest[0]), rest[1], self._requested_name)
            return self._proxy(int(rest[2])) if library is None else library
        if kind in ("answer", "module", "imported"):
            return self._proxy(int(rest[-1]))
        raise wire.Malformed(f"no value is of kind {kind!r}")

    async def _wait_for(self, coroutine: SolutionProxy) -> Any:
        return self.ask("await", coroutine)

    def _error(self, owner: str, number: int, *fields: Any) -> BaseException:
        if owner != "tests":
            class_number, family, args, text, reason = fields
            kind = error_class(int(class_number), family, self._error_classes)
            members = {"_text": str(text), "_reason": str(reason), "_proxy": self._proxy(int(number))}
            return error_of(kind, [self._decode(arg) for arg in args], **members)
        value = self._tests_objects[number]
        if not isinstance(value, BaseException):
            raise wire.Malformed("the answer raised no exception")
        return value

    def _encode(self, value: Any) -> Any:
        try:
            return self._tests_objects.encode(value)
        except wire.NotEncodable as error:
            self.give_up(str(error))
        except RecursionError:
            self.give_up("the tests give a value that contains itself")


def _derived(value: Any, proxy: SolutionProxy) -> Any:
    """Return a plain value of a class of the answer, with the methods of that class; compared as the plain value."""
    members: JsonObject = {"__getattr__": lambda _, name: getattr(proxy, name), "_number_of_answer": proxy._number}
    base: Callable[..., Any] = type(type(value).__name__, (type(value),), members)
    return base(value)


def _refresh(old: Any, new: Any) -> None:
    if not wire.is_mutable(old):
        raise wire.Malformed("the answer changed what cannot be changed")
    if isinstance(old, dict | set):
        old.clear()
        old.update(new)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            if isinstance(before, list) and isinstance(after, list):
                _refresh(before, after)
            else:
                old[index] = after
    elif hasattr(old, "extend"):
        old.clear()
        old.extend(new)
    else:
        old[...] = new
