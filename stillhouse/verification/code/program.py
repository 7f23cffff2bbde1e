"""One run of the code under test, in the process that is given over to it."""

import atexit
import inspect
import io
import json
import os
import sys
import threading
import traceback
import types
import unittest
from collections.abc import Callable
from typing import Any, Final, NoReturn

from stillhouse.types import JsonObject

_SOLUTION: Final = "solution"
_TESTS: Final = "tests"


class _Failed(Exception):
    """The run ended early; the message is fit for a note."""


class _BadTests(Exception):
    """The tests themselves cannot be run here, which says nothing of the answer."""


def run_program(code: str, program: JsonObject, report: int) -> NoReturn:
    """Runs `code` as `program` asks, writes what came of it to the file `report` as JSON, and ends the process.

    The report holds `values`, what the calls returned; or `error` and, where the tests are to blame, `bad_tests`.
    A run that ends its process in another way leaves none.

    Args:
        code: the answer's Python.
        program: with `stdin`, run as a script; with `calls` (objects of `name` and `args`), imported and called; with
            `tests` (source) and `entry_point`, imported and tested.
        report: number of an open file.
    """
    process = os.getpid()
    try:
        outcome = _outcome(code, program)
        # What the code forked comes by here as well.
        if os.getpid() == process:
            with os.fdopen(report, "wb") as file:
                file.write(outcome)
    finally:
        # Past what the code registered for the end of the process, and never back into the loop that forked.
        os._exit(0)


def _outcome(code: str, program: JsonObject) -> bytes:
    try:
        atexit._clear()
        _open_streams()
        sys.path.insert(0, os.getcwd())
        sys.argv = [f"{_SOLUTION}.py"]
        values = _run(code, program)
        _finish()
        return json.dumps({"values": values}, default=_plain).encode()
    except _BadTests as error:
        return json.dumps({"error": str(error), "bad_tests": True}).encode()
    except _Failed as error:
        return json.dumps({"error": str(error)}).encode()
    # Whatever the code raises, SystemExit and MemoryError among it, is its outcome.
    except BaseException as error:
        return json.dumps({"error": _told(error)}).encode()


def _open_streams() -> None:
    """Binds the streams' names to files that hold nothing of the process that forked."""
    for name, number, mode in (("stdin", 0, "rb"), ("stdout", 1, "wb")):
        stream = io.TextIOWrapper(os.fdopen(os.dup(number), mode), "utf-8", "replace")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(code: str, program: JsonObject) -> list[Any]:
    if "stdin" in program:
        main = _module("__main__")
        try:
            _execute(code, _SOLUTION, vars(main))
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        return []
    solution = _module(_SOLUTION)
    _execute(code, _SOLUTION, vars(solution))
    if "calls" in program:
        return [_function(solution, call["name"])(*call["args"]) for call in program["calls"]]
    _test(solution, program["tests"], program["entry_point"])
    return []


def _finish() -> None:
    """What the interpreter does at its end: waits for threads, and runs what was registered for then."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in {sys.stdout, sys.__stdout__}:
        if stream is not None:
            stream.flush()


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = f"{_SOLUTION}.py"
    sys.modules[name] = module
    return module


def _execute(source: str, name: str, namespace: dict[str, Any]) -> None:
    exec(compile(source, f"{name}.py", "exec", dont_inherit=True), namespace)


def _function(solution: types.ModuleType, name: str) -> Callable[..., Any]:
    """A function of the answer's, or a method of its class `Solution`, as LeetCode has it."""
    found = getattr(solution, name, None)
    if found is None and hasattr(solution, "Solution"):
        found = getattr(solution.Solution(), name, None)
    if not callable(found):
        raise _Failed(f"the answer defines no function {name}")
    return found


def _test(solution: types.ModuleType, tests: str, entry_point: str | None) -> None:
    """Runs test code among the answer's names, then what it defines: `check(candidate)`, `test_...()`, TestCases."""
    namespace = {**vars(solution), "__name__": _TESTS}
    before = dict(namespace)
    try:
        _execute(tests, _TESTS, namespace)
    except SyntaxError as error:
        if error.filename == f"{_TESTS}.py":
            raise _BadTests(f"the tests are no Python: {error}") from error
        raise
    except ModuleNotFoundError as error:
        if _raised_in(error) == f"{_TESTS}.py":
            raise _BadTests(f"the tests need a module that is not installed: {error.name}") from error
        raise
    defined = {name: value for name, value in namespace.items() if before.get(name) is not value}
    if entry_point and callable(defined.get("check")):
        defined["check"](_function(solution, entry_point))
    for name, value in defined.items():
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            _run_case(value)
        elif name.startswith("test") and inspect.isfunction(value):
            _call_test(name, value)


def _call_test(name: str, test: Callable[..., Any]) -> None:
    needed = [one.name for one in inspect.signature(test).parameters.values() if one.default is one.empty]
    if needed:
        raise _BadTests(f"{name} takes arguments ({', '.join(needed)}); tests without any can be run")
    test()


def _run_case(case: type[unittest.TestCase]) -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    for _, told in (*result.failures, *result.errors):
        raise _Failed(told.strip().splitlines()[-1])


def _raised_in(error: BaseException) -> str:
    return traceback.extract_tb(error.__traceback__)[-1].filename


def _told(error: BaseException) -> str:
    """The error with the line of the answer or the tests that it comes from."""
    ours = {f"{_SOLUTION}.py", f"{_TESTS}.py"}
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in ours]
    place = f"{lines[-1].filename}, line {lines[-1].lineno}: " if lines else ""
    return f"{place}{type(error).__name__}: {error}"


def _plain(value: Any) -> Any:
    """Something JSON can carry for a value it cannot."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if hasattr(value, "tolist"):
        return value.tolist()
    try:
        return list(value)
    except TypeError:
        return repr(value)
