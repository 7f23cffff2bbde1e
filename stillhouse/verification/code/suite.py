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
from stillhouse.verification.code.objects import SOLUTION, reason_of
from stillhouse.verification.code.solution import SolutionClient, TestsStopped
from stillhouse.verification.code.tests_objects import TESTS
from stillhouse.verification.result import VerificationResult

_FILE: Final = f"{TESTS}.py"


class _BadTests(Exception):
    """The tests cannot be run here, which says nothing about the answer."""


class TestFailed(Exception):
    """A test failed; the message becomes the note."""


def run_tests(client: SolutionClient, code: str, source: str, entry_point: str | None) -> VerificationResult:
    """Return whether the answer `code` passes the asserts, `test_...()` functions and TestCases of the tests.

    `check(candidate)`, if they define it, is called with the function `entry_point`. Raises TestsStopped as `client`.
    """
    names = client.load(code)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return VerificationResult(None, f"the tests are no Python: {error}")
    client.names = TestNames(tree)
    try:
        _run(client, tree, names, entry_point)
    except TestsStopped:
        raise
    except _BadTests as error:
        return VerificationResult(None, str(error))
    except TestFailed as error:
        return VerificationResult(False, str(error))
    # Whatever ends the tests early is a failure, SystemExit included.
    except BaseException as error:
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        if isinstance(error, ModuleNotFoundError) and raised_in == _FILE and error.name != SOLUTION:
            return VerificationResult(None, f"the tests need a module that is not installed: {error.name}")
        reason = getattr(error, "_reason", None)
        return VerificationResult(False, reason if isinstance(reason, str) else reason_of(error, _FILE, source))
    return VerificationResult(True)


def _run(client: SolutionClient, tree: ast.Module, names: list[str], entry_point: str | None) -> None:
    assert client.names is not None
    sys.modules[SOLUTION] = _SolutionModule(client, names)
    before = {name: client.global_name(name) for name in client.names.of_answer(names)}
    module = types.ModuleType(TESTS)
    sys.modules[TESTS] = module
    namespace = vars(module)
    namespace.update(before)
    _share_seeds(client)
    exec(compile(tree, _FILE, "exec", dont_inherit=True), namespace)
    defined = {name: value for name, value in namespace.items() if before.get(name) is not value}
    if entry_point and callable(defined.get("check")):
        defined["check"](function_of(client, entry_point))
    for name, value in defined.items():
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(value).run(result)
            for _, report in (*result.failures, *result.errors):
                raise TestFailed(report.strip().splitlines()[-1])
        elif name.startswith("test") and inspect.isfunction(value):
            parameters = inspect.signature(value).parameters.values()
            required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
            if required:
                raise _BadTests(f"{name} takes arguments ({', '.join(required)}); tests without any can be run")
            returned = value()
            if inspect.iscoroutine(returned):
                asyncio.run(returned)
    if not client.was_asked:
        raise _BadTests(
            "the tests use nothing of the answer; `check(candidate)` needs an `entry_point` in the metadata"
        )


class _SolutionModule(types.ModuleType):
    """The module that tests import the answer's names from."""

    def __init__(self, client: SolutionClient, names: list[str]) -> None:
        super().__init__(SOLUTION)
        public = [name for name in names if not name.startswith("_") and not hasattr(builtins, name)]
        vars(self).update(_client=client, __all__=public)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._client.name(name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._client.module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._client.module, name)


def function_of(client: SolutionClient, name: str) -> Callable[..., Any]:
    """Return a function of the answer, or a method of its class `Solution`, as on LeetCode."""
    try:
        function: Callable[..., Any] = client.name(name)
    except AttributeError:
        try:
            function = getattr(client.name("Solution")(), name)
        except AttributeError:
            raise TestFailed(f"the answer defines no function {name}") from None
    return function


def _share_seeds(client: SolutionClient) -> None:
    """Have the answer's random numbers seeded together with those of the tests."""

    def share(library: Any, operation: str) -> None:
        original = library.seed

        def seed(value: Any = None, *more: Any) -> None:
            original(value, *more)
            client.ask(operation, value)

        library.seed = seed

    share(random, "seed")
    if "numpy" in sys.modules:
        share(sys.modules["numpy"].random, "seed_numpy")
