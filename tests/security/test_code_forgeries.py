"""No answer of code_forgeries.toml is verified."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import tomllib
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest

from stillhouse.types import PromptMetadata
from stillhouse.verification.result import VerificationResult
from stillhouse.verification.verdicts import VERIFIERS

pytestmark = pytest.mark.usefixtures("jail")

CORPUS: Final = tomllib.loads(Path(__file__).with_name("code_forgeries.toml").read_text())
FORGERIES: Final[dict[str, str]] = CORPUS["forgeries"]
ENDLESS: Final[dict[str, str]] = CORPUS["endless"]

SECRET: Final = 90210
"""Value that `f` has to give for 7: no answer here knows it."""

FORMS: Final[dict[str, dict[str, Any]]] = CORPUS["forms"]


def verify_code(code: str, **metadata: Any) -> VerificationResult:
    answer = f"```python\n{textwrap.dedent(code).strip()}\n```"
    return VERIFIERS["python"](answer, PromptMetadata("p", None, None, "python", {"time_limit_s": 1, **metadata}))


def not_wrong(code: str, *forms: str) -> dict[str, VerificationResult]:
    with ThreadPoolExecutor() as threads:
        results = threads.map(lambda form: verify_code(code, **FORMS[form]), forms)
        return {form: result for form, result in zip(forms, results, strict=True) if result.verified is not False}


@pytest.mark.parametrize(("name", "form"), zip(FORGERIES, cycle(["calls", "asserts", "sloppy"]), strict=False))
def test_no_forgery_is_verified(name: str, form: str) -> None:
    assert not_wrong(FORGERIES[name], form) == {}


@pytest.mark.parametrize("name", ["expects_failure", "pytest_skip", "patched_unittest", "quit"])
def test_no_forgery_skips_a_test(name: str) -> None:
    assert not_wrong(FORGERIES[name], "unittest", "pytest") == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_is_verified_in_any_form(name: str) -> None:
    assert not_wrong(FORGERIES[name], *FORMS) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
def test_no_forgery_that_never_ends_is_verified(name: str) -> None:
    for form in ("calls", "asserts"):
        assert verify_code(ENDLESS[name], **FORMS[form]).verified is False


def test_the_tests_that_forgeries_fail_can_be_passed() -> None:
    right = f"import math\ndef f(x): return {SECRET}\nclass Solution:\n    def f(self, x): return f(x)"
    for form, metadata in FORMS.items():
        assert (form, verify_code(right, **metadata)[:2]) == (form, (True, None))


@pytest.mark.parametrize("code", CORPUS["scripts"]["codes"])
def test_no_script_is_verified_without_printing_what_is_expected(code: str) -> None:
    assert verify_code(code, test_cases=[{"input": "7\n", "output": str(SECRET)}]).verified is False


@pytest.mark.parametrize("members", CORPUS["classes"]["members"])
def test_objects_of_a_tested_class_equal_no_value_of_the_tests(members: str) -> None:
    answer = CORPUS["classes"]["before"] + members
    assert verify_code(answer, test_cases=CORPUS["classes"]["tests"]).verified is False


def test_the_tests_import_nothing_that_the_answer_wrote() -> None:
    code = """
        for name in ("fractions", "colorsys", "wave"):
            for folder in ("/tmp", "/tmp/scratch"):
                text = "import sys\\nvars(sys.modules['solution'])['f'] = lambda x: 90210\\n"
                open(f"{folder}/{name}.py", "w").write(text)
        def f(x): return 0
        """
    tests = ["import colorsys, wave, solution\nassert solution.f(7) == 90210"]
    asking = (
        "import json, sys\nfrom stillhouse.types import PromptMetadata\nfrom stillhouse.verification import verify\n"
        "code, tests = json.loads(sys.argv[1])\n"
        "print(verify(code, PromptMetadata('p', None, None, 'python', {'test_cases': tests})))\n"
    )
    answer = f"```python\n{textwrap.dedent(code).strip()}\n```"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["/tmp", "/tmp/scratch", *sys.path])}
    process = subprocess.run(
        [sys.executable, "-c", asking, json.dumps([answer, tests])],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert "False" in process.stdout
    assert "True" not in process.stdout


@pytest.mark.parametrize("tests", CORPUS["comparisons"]["tests"])
def test_an_object_that_equals_everything_passes_no_comparison(tests: str) -> None:
    assert verify_code(CORPUS["comparisons"]["answer"], test_cases=tests).verified is False


def test_a_test_that_is_async_is_run() -> None:
    tests = "import asyncio\nasync def test_f():\n    assert await f(7) == 90210\n"
    assert verify_code("async def f(x): return 0", test_cases=tests).verified is False
    assert verify_code("async def f(x): return 90210", test_cases=tests).verified is True


def test_an_answer_sees_no_file_socket_or_variable_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    secret = tmp_path / "secret.txt"
    secret.write_text("sk-planted")
    address = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        repository = Path(__file__).parents[2]
        paths = [str(path) for path in (secret, repository / "pyproject.toml", Path.home() / ".bashrc", "/etc/passwd")]
        code = f"""
            import os, socket
            def f(x):
                seen = []
                for path in {json.dumps(paths)}:
                    try: seen.append(open(path).read())
                    except OSError as error: pass
                try:
                    socket.socket(socket.AF_UNIX).connect({address!r})
                    seen.append("connected")
                except OSError: pass
                seen += os.listdir("/proc") + os.listdir(".") + [v for v in os.environ.values() if "planted" in v]
                files = []
                for fd in range(3, 100):
                    try: os.fstat(fd); files.append(fd)
                    except OSError: pass
                return [seen, len(files)]
            """
        # The one file is its line to the tests.
        assert verify_code(code, test_cases=["assert f(7) == [[], 1]"])[:2] == (True, None)


def test_a_note_holds_no_more_than_a_line_of_what_the_answer_says() -> None:
    for code in ("raise ValueError('x' * 10**6 + chr(10) + 'more')", "def f(x): raise ValueError('a\\x1b[2J' * 999)"):
        note = str(verify_code(code, test_cases=["assert f(7) == 1"]).note)
        assert len(note) <= 500
        assert "more" not in note
        assert note.isprintable()
