"""Tests in Python, run apart from the answer: on proxies of what the answer defines."""

import ast
import asyncio
import builtins
import inspect
import random
import sys
import traceback
import types
import unittest
from collections.abc import Callable
from typing import Any, Final

from stillhouse.verification.code.names import TestNames
from stillhouse.verification.code.solution import SolutionClient, TestsStopped
from stillhouse.verification.code.tests_objects import TESTS

_SOLUTION: Final = "solution"
_FILE: Final = f"{TESTS}.py"


class _BadTests(Exception):
    """The tests cannot be run here, which says nothing about the answer."""


class _Failed(Exception):
    """A test failed; the message becomes the note."""


class Suite:
    """Source text of tests: asserts, `check(candidate)`, `test_...()` functions and TestCases.

    Args:
        source: the tests.
        entry_point: the function that `check` is called with, if they define it.
    """

    def __init__(self, source: str, entry_point: str | None) -> None:
        self._source = source
        self._entry_point = entry_point
        self._tree: ast.Module | None = None
        self._problem = ""
        try:
            self._tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self._problem = f"the tests are no Python: {error}"

        self.names = TestNames(self._tree or ast.Module([], []))
        """The names in the tests."""

    def run(self, client: SolutionClient, code: str) -> tuple[bool | None, str] | None:
        """`verified` (False or None) and the reason if the answer `code` does not pass; None if it does.

        Raises:
            TestsStopped: as `client` does.
        """
        names = client.load(code)
        if self._tree is None:
            return None, self._problem
        try:
            self._run(client, names)
        except TestsStopped:
            raise
        except _BadTests as error:
            return None, str(error)
        except _Failed as error:
            return False, str(error)
        # Whatever ends the tests early is a failure, SystemExit included.
        except BaseException as error:
            if isinstance(error, ModuleNotFoundError) and _raised_in(error) == _FILE and error.name != _SOLUTION:
                return None, f"the tests need a module that is not installed: {error.name}"
            return False, _reason(error)
        return None

    def _run(self, client: SolutionClient, names: list[str]) -> None:
        assert self._tree is not None
        sys.modules[_SOLUTION] = _SolutionModule(client, names)
        before = {name: client.global_name(name) for name in self.names.of_answer(names)}
        module = types.ModuleType(TESTS)
        sys.modules[TESTS] = module
        namespace = vars(module)
        namespace.update(before)
        _share_seeds(client)
        exec(compile(self._tree, _FILE, "exec", dont_inherit=True), namespace)
        defined = {name: value for name, value in namespace.items() if before.get(name) is not value}
        if self._entry_point and callable(defined.get("check")):
            defined["check"](function_of(client, self._entry_point))
        for name, value in defined.items():
            if isinstance(value, type) and issubclass(value, unittest.TestCase):
                _run_case(value)
            elif name.startswith("test") and inspect.isfunction(value):
                _call_test(name, value)


class _SolutionModule(types.ModuleType):
    """The module that tests import the answer's names from."""

    def __init__(self, client: SolutionClient, names: list[str]) -> None:
        super().__init__(_SOLUTION)
        public = [name for name in names if not name.startswith("_") and not hasattr(builtins, name)]
        vars(self).update(_client=client, __all__=public)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._client.name(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._client.set_name(name, value)

    def __delattr__(self, name: str) -> None:
        self._client.delete_name(name)


def function_of(client: SolutionClient, name: str) -> Callable[..., Any]:
    """A function of the answer, or a method of its class `Solution`, as on LeetCode."""
    try:
        function: Callable[..., Any] = client.name(name)
    except AttributeError:
        try:
            function = getattr(client.name("Solution")(), name)
        except AttributeError:
            raise _Failed(f"the answer defines no function {name}") from None
    return function


def _share_seeds(client: SolutionClient) -> None:
    """Has the answer's random numbers seeded together with those of the tests."""
    original = random.seed

    def seed(value: Any = None, *more: Any) -> None:
        original(value, *more)
        client.ask("seed", value)

    random.seed = seed  # type: ignore[assignment]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        original_numpy = numpy.random.seed

        def seed_numpy(value: Any = None) -> None:
            original_numpy(value)
            client.ask("seed_numpy", value)

        numpy.random.seed = seed_numpy


def _call_test(name: str, test: Callable[..., Any]) -> None:
    parameters = inspect.signature(test).parameters.values()
    required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    if required:
        raise _BadTests(f"{name} takes arguments ({', '.join(required)}); tests without any can be run")
    result = test()
    if inspect.iscoroutine(result):
        asyncio.run(result)


def _run_case(case: type[unittest.TestCase]) -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    for _, report in (*result.failures, *result.errors):
        raise _Failed(report.strip().splitlines()[-1])


def _raised_in(error: BaseException) -> str:
    return traceback.extract_tb(error.__traceback__)[-1].filename


def _reason(error: BaseException) -> str:
    """The error with the line of the answer or the tests that raised it."""
    reason = getattr(error, "_reason", None)
    if isinstance(reason, str):
        return reason
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    location = f"{_FILE}, line {lines[-1]}: " if lines else ""
    return f"{location}{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
