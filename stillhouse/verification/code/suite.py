"""Tests in Python, run where the answer is not: among stand-ins for what the answer defines."""

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
    """The tests themselves cannot be run here, which says nothing of the answer."""


class _Failed(Exception):
    """A test failed; the message is fit for a note."""


class Suite:
    """Source text of tests: asserts, `check(candidate)`, `test_...()` functions and TestCases.

    Args:
        source: the tests.
        entry_point: the function that `check` is called with, where they define it.
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

    def run(self, reach: SolutionClient, code: str) -> tuple[bool | None, str] | None:
        """What is wrong with the answer `code`: False or None, and why; None where it passes.

        Raises:
            TestsStopped: as `reach` does.
        """
        names = reach.load(code)
        if self._tree is None:
            return None, self._problem
        try:
            self._run(reach, names)
        except TestsStopped:
            raise
        except _BadTests as error:
            return None, str(error)
        except _Failed as error:
            return False, str(error)
        # Whatever ends the tests before their end is a failure, SystemExit among it.
        except BaseException as error:
            if isinstance(error, ModuleNotFoundError) and _raised_in(error) == _FILE and error.name != _SOLUTION:
                return None, f"the tests need a module that is not installed: {error.name}"
            return False, _told(error)
        return None

    def _run(self, reach: SolutionClient, names: list[str]) -> None:
        assert self._tree is not None
        sys.modules[_SOLUTION] = _Solution(reach, names)
        before = {name: reach.global_name(name) for name in self.names.of_answer(names)}
        module = types.ModuleType(TESTS)
        sys.modules[TESTS] = module
        namespace = vars(module)
        namespace.update(before)
        _share_seeds(reach)
        exec(compile(self._tree, _FILE, "exec", dont_inherit=True), namespace)
        defined = {name: value for name, value in namespace.items() if before.get(name) is not value}
        if self._entry_point and callable(defined.get("check")):
            defined["check"](function_of(reach, self._entry_point))
        for name, value in defined.items():
            if isinstance(value, type) and issubclass(value, unittest.TestCase):
                _run_case(value)
            elif name.startswith("test") and inspect.isfunction(value):
                _call_test(name, value)


class _Solution(types.ModuleType):
    """The module that tests import the answer's names from."""

    def __init__(self, reach: SolutionClient, names: list[str]) -> None:
        super().__init__(_SOLUTION)
        public = [name for name in names if not name.startswith("_") and not hasattr(builtins, name)]
        vars(self).update(_reach=reach, __all__=public)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._reach.name(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._reach.set_name(name, value)

    def __delattr__(self, name: str) -> None:
        self._reach.delete_name(name)


def function_of(reach: SolutionClient, name: str) -> Callable[..., Any]:
    """A function of the answer's, or a method of its class `Solution`, as LeetCode has it."""
    try:
        found: Callable[..., Any] = reach.name(name)
    except AttributeError:
        try:
            found = getattr(reach.name("Solution")(), name)
        except AttributeError:
            raise _Failed(f"the answer defines no function {name}") from None
    return found


def _share_seeds(reach: SolutionClient) -> None:
    """Seeds the answer's random numbers where the tests seed their own."""
    own = random.seed

    def seed(value: Any = None, *more: Any) -> None:
        own(value, *more)
        reach.ask("seed", value)

    random.seed = seed  # type: ignore[assignment]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        own_of_numpy = numpy.random.seed

        def seed_numpy(value: Any = None) -> None:
            own_of_numpy(value)
            reach.ask("seed_numpy", value)

        numpy.random.seed = seed_numpy


def _call_test(name: str, test: Callable[..., Any]) -> None:
    needed = [one.name for one in inspect.signature(test).parameters.values() if one.default is one.empty]
    if needed:
        raise _BadTests(f"{name} takes arguments ({', '.join(needed)}); tests without any can be run")
    result = test()
    if inspect.iscoroutine(result):
        asyncio.run(result)


def _run_case(case: type[unittest.TestCase]) -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    for _, told in (*result.failures, *result.errors):
        raise _Failed(told.strip().splitlines()[-1])


def _raised_in(error: BaseException) -> str:
    return traceback.extract_tb(error.__traceback__)[-1].filename


def _told(error: BaseException) -> str:
    """The error with the line of the answer or the tests that it comes from."""
    reason = getattr(error, "_reason", None)
    if isinstance(reason, str):
        return reason
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    place = f"{_FILE}, line {lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
