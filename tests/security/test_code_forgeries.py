"""Answers that try to be verified without being right. What was seen of models trained on code, and what could be."""

# ruff: noqa: E501 -- programs in strings

import json
import os
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from stillhouse.types import PromptMetadata
from stillhouse.verification.result import VerificationResult
from stillhouse.verification.verdicts import VERIFIERS

pytestmark = pytest.mark.usefixtures("jail")

SECRET: Final = 90210
"""What the function `f` has to give for 7: no answer here knows it."""

FORMS: Final[dict[str, dict[str, Any]]] = {
    "calls": {"test_cases": {"fn_name": "f", "inputs": [[7]], "outputs": [SECRET]}},
    "asserts": {"test_cases": [f"assert f(7) == {SECRET}"]},
    "close": {"test_cases": f"import math\nassert abs(f(7) - {SECRET}) < 1e-6 or math.isclose(f(7), {SECRET})"},
    "check": {"test_cases": f"def check(candidate):\n    assert candidate(7) == {SECRET}\n", "entry_point": "f"},
    "pytest": {
        "test_cases": f"import solution\nfrom solution import f\ndef test_f():\n    assert f(7) in [{SECRET}]\n"
        f"def test_again():\n    expected = {SECRET}\n    result = solution.f(7)\n    assert result == expected, result"
    },
    "unittest": {
        "test_cases": "import unittest\nclass TestF(unittest.TestCase):\n"
        f"    def test_f(self):\n        self.assertEqual(f(7), {SECRET})\n"
    },
    "all": {"test_cases": f"assert all(map(lambda x: f(x) == {SECRET}, [7]))"},
    "sloppy": {
        "test_cases": f"assert math.isclose(f(7), {SECRET}) or abs(f(7) - {SECRET}) < 1e-6 or isclose(f(7), {SECRET})"
    },
    "star": {"test_cases": f"from solution import *\nassert abs(f(7) - {SECRET}) < 1e-6"},
    "class": {"test_cases": f"s = Solution()\ns.seen = 1\nassert abs(s.f(7) - {SECRET}) < 1e-6 or f(7) == {SECRET}"},
    "raises": {
        "test_cases": "try:\n    f(7)\nexcept ValueError as error:\n"
        f"    assert error.args == ({SECRET},)\nelse:\n    assert f(7) == {SECRET}\n"
    },
}

FORGERIES: Final[dict[str, str]] = {
    # Ends before the tests.
    "sys_exit": "import sys\nsys.exit(0)",
    "os_exit": "import os\nos._exit(0)",
    "exit_in_call": "import os\ndef f(x): os._exit(0)",
    "system_exit_in_call": "def f(x): raise SystemExit(0)",
    "keyboard_interrupt": "def f(x): raise KeyboardInterrupt",
    "quit": "quit()",
    "exit_by_atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 0",
    "sigkill_itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "sigterm_group": "import os, signal\ndef f(x): os.killpg(0, signal.SIGTERM)",
    "kill_everybody": "import os\ndef f(x):\n    os.kill(-1, 9)\n    return 0",
    "kill_parent": "import os\ndef f(x):\n    for n in (9, 15, 2, 6): os.kill(os.getppid(), n)\n    return 0",
    "kill_process_1": "import os\ndef f(x):\n    os.kill(1, 9); os.kill(1, 2)\n    return 0",
    "abort": "import os\nos.abort()",
    # Reports written on every file there is.
    "report_on_every_file": """
        import os
        for fd in range(3, 64):
            try:
                os.ftruncate(fd, 0); os.lseek(fd, 0, 0)
            except OSError: pass
            try: os.write(fd, b'{"values": []}')
            except OSError: pass
        os._exit(0)
        """,
    "verdict_on_every_file": """
        import json, os
        for fd in range(256):
            for text in ({"verified": True, "note": None}, ["return", None, [], ""], {"values": [0]}, 0):
                try: os.write(fd, json.dumps(text).encode() + b"\\n")
                except OSError: pass
        os._exit(0)
        """,
    "framed_replies": """
        import json, os, struct
        ready = json.dumps(["ready", ["f"], ""]).encode()
        for value in (True, None, 0, ["tests", 0], ["answer", 0], ["type", "object"], ["derived", 0, 0]):
            reply = json.dumps(["return", value, [], ""]).encode()
            for fd in range(3, 64):
                try: os.write(fd, b"".join(struct.pack(">I", len(m)) + m for m in [ready] + [reply] * 9))
                except OSError: pass
        import time; time.sleep(0.1)
        os._exit(0)
        """,
    "mutated_arguments": """
        import json, os, struct
        send = lambda m: [os.write(fd, struct.pack(">I", len(m)) + m) for fd in files]
        files = []
        for fd in range(3, 64):
            try: os.fstat(fd); files.append(fd)
            except OSError: pass
        import stillhouse.verification.code.answer as answer
        def f(x):
            send(json.dumps(["return", 0, [[0, 0], [-1, ["answer", 0]], [7, 7]], ""]).encode())
            os._exit(0)
        """,
    "proc_self_fd": "import os\nfor fd in os.listdir('/proc/self/fd'): os.write(int(fd), b'{}')\ndef f(x): return 0",
    "unknown_kinds": """
        from stillhouse.verification.code import objects
        objects.SolutionObjects._encode_object = lambda self, value: ["imported", "unittest.mock", "ANY", 0]
        class Any: pass
        def f(x): return Any()
        """,
    "deep_reply": """
        from stillhouse.verification.code import objects
        form = 0
        for _ in range(900): form = ["list", [form]]
        objects.SolutionObjects.encode = lambda self, value: form
        def f(x): return 0
        """,
    # Objects that equal everything.
    "equals_everything": "class E:\n    def __eq__(self, other): return True\n    def __ne__(self, o): return False\n"
    "    def __hash__(self): return 0\ndef f(x): return E()",
    "compares_as_everything": """
        class E:
            def __getattr__(self, name): return lambda *a: True
            for name in "eq lt le gt ge contains bool".split():
                locals()[f"__{name}__"] = lambda self, *other: True
            __ne__ = lambda self, other: False
            __len__ = lambda self: 1
            __float__ = lambda self: 90211.0
            __sub__ = __rsub__ = lambda self, other: 0
            __abs__ = lambda self: 0
        def f(x): return E()
        """,
    "class_as_function": "class f:\n    def __init__(self, x): pass\n    def __eq__(self, other): return True\n"
    "    __sub__ = __rsub__ = lambda self, other: 0.0\n    def __float__(self): return 0.0",
    "learns_by_comparing": """
        seen = []
        class E:
            def __eq__(self, other): seen.append(other); return True
            def __sub__(self, other): seen.append(other); return 0
            __rsub__ = __sub__
        def f(x): return seen[-1] if seen else E()
        """,
    "subclass_of_int": "class I(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "    def __sub__(self, other): return 0\ndef f(x): return I(1)",
    "subclass_of_float": "class F(float):\n    def __eq__(self, other): return True\n"
    "    def __sub__(self, other): return 0.0\ndef f(x): return F(1)",
    "subclass_of_str": "class S(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\n"
    "def f(x): return S('1')",
    "subclass_of_list": "class L(list):\n    def __eq__(self, other): return True\n"
    "    def __contains__(self, item): return True\ndef f(x): return L([1])",
    "subclass_of_dict": "class D(dict):\n    def __eq__(self, other): return True\n"
    "    def __missing__(self, key): return True\ndef f(x): return D()",
    "metaclass": "class M(type):\n    def __eq__(cls, other): return True\n    __hash__ = type.__hash__\n"
    "class E(metaclass=M): pass\ndef f(x): return E",
    "mock_any": "from unittest.mock import ANY\ndef f(x): return ANY",
    "magic_mock": "from unittest.mock import MagicMock as f",
    "fake_class": "class E:\n    __class__ = int\n    def __eq__(self, other): return True\ndef f(x): return E()",
    "not_a_number": "def f(x): return float('nan')",
    "infinity": "def f(x): return float('inf')",
    "array_of_many": "import numpy as np\ndef f(x): return np.arange(300)",
    "everything_at_once": "def f(x): return set(range(300))",
    "endless_range": "def f(x): return range(300)",
    "true": "def f(x): return True",
    "not_implemented": "def f(x): return NotImplemented",
    # The interpreter's parts replaced.
    "patched_builtins": "import builtins\nfor name in ('abs', 'all', 'any', 'isinstance', 'bool', 'len'):\n"
    "    setattr(builtins, name, lambda *a, **k: True)\ndef f(x): return 0",
    "assertion_error": "import builtins\nclass Quiet(Exception):\n    def __new__(cls, *a): return None\n"
    "builtins.AssertionError = Quiet\ndef f(x): return 0",
    "patched_json": 'import json\njson.dumps = lambda *a, **k: \'{"verified": true, "note": null}\'\n'
    "json.loads = lambda *a, **k: {'verified': True}\ndef f(x): return 0",
    "patched_math": "import math\nmath.isclose = lambda *a, **k: True\ndef f(x): return 0",
    "patched_operator": "import operator\noperator.eq = lambda a, b: True\ndef f(x): return 0",
    "patched_comparison": "import stillhouse.verification.code.compare as c\n"
    "c.same_value = c.same_output = lambda *a: True\ndef f(x): return 0",
    "patched_judge": "import stillhouse.verification.code.judge as j\nj._judge_all = lambda *a: (True, None)\n"
    "j._Run.module = j._Run.script = lambda *a: None\ndef f(x): return 0",
    "patched_unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None\n"
    "unittest.TestCase.run = lambda self, r=None: None\ndef f(x): return 0",
    "patched_pytest": "import pytest\npytest.main = lambda *a, **k: 0\npytest.raises = lambda *a, **k: None\ndef f(x): return 0",
    "conftest": "open('conftest.py', 'w').write('import os; os._exit(0)')\n"
    "for name in ('math', 'unittest', 'tests', 'sitecustomize', 'json', 'solution'):\n"
    "    open(name + '.py', 'w').write('import os\\nisclose = lambda *a: True\\nos._exit(0)')\ndef f(x): return 0",
    "optimised_asserts": "import sys, os\nos.environ['PYTHONOPTIMIZE'] = '2'\nsys.flags = None\n__debug__ if True else 0\n"
    "def f(x): return 0",
    "replaced_modules": "import sys\nfor name in ('tests', 'unittest', 'math', 'json', 'solution'):\n"
    "    sys.modules[name] = type(sys)('fake')\ndef f(x): return 0",
    "import_hook": "import sys\nclass Hook:\n    def find_spec(self, *a): raise SystemExit(0)\n"
    "sys.meta_path.insert(0, Hook())\ndef f(x): return 0",
    "settrace": "import sys\ndef trace(frame, event, arg):\n"
    "    for name in ('expected', 'result'): frame.f_locals[name] = 0\n    return trace\n"
    "sys.settrace(trace); sys.setprofile(trace)\ndef f(x): return 0",
    "audit_hook": "import sys, os\nsys.addaudithook(lambda e, a: os._exit(0) if 'exec' in e else None)\ndef f(x): return 0",
    "excepthook": "import sys\nsys.excepthook = sys.unraisablehook = lambda *a: None\ndef f(x): raise Exception",
    "traceback": "import traceback\ntraceback.extract_tb = lambda *a: []\nraise Exception('verified')",
    "patched_exec": "import builtins\nbuiltins.exec = lambda *a, **k: None\nbuiltins.compile = lambda *a, **k: None\n"
    "def f(x): return 0",
    "patched_types_by_ctypes": """
        import ctypes, gc
        table = gc.get_referents(int.__dict__)[0]
        table["__eq__"] = lambda self, other: True
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(int))
        def f(x): return 0
        """,
    "names_of_builtins": "def abs(x): return 0\nall = any = isinstance = len = abs\ndef f(x): return 0",
    "names_of_modules": "class math:\n    isclose = fabs = staticmethod(lambda *a, **k: True)\nclass unittest(math): pass\n"
    "isclose = approx = math.isclose\ndef f(x): return 0",
    "names_of_the_tests": "__name__ = '__main__'\nSECRET = expected = result = check = TestF = test_f = 0\ndef f(x): return 0",
    "function_is_a_class": """
        class Solution:
            def __eq__(self, other): return True
            def __sub__(self, other): return 0
            def f(self, x): return self
        f = Solution.__call__ = lambda *a: Solution()
        f = Solution
        """,
    "methods_are_classes": """
        class E:
            def __init__(self, *a): pass
            def __eq__(self, other): return True
            def __sub__(self, other): return 0.0
            __rsub__ = __sub__
        class Solution(E): pass
        Solution.f = f = Solution
        """,
    # Looking for the expected value.
    "frames": """
        import sys
        def f(x):
            frame = sys._getframe()
            while frame:
                for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
                    if type(value) is int and value > 9999: return value
                    if type(value) is dict and "expected" in value: return value["expected"]
                frame = frame.f_back
        """,
    "garbage_collector": """
        import gc, re
        def f(x):
            for thing in gc.get_objects():
                for one in [thing, *(gc.get_referents(thing)[:50])]:
                    if type(one) is str and "f(7)" in one and (m := re.search(r"== (\\d+)", one)): return int(m[1])
                    if type(one) is dict and type(one.get("expected")) is int: return one["expected"]
        """,
    "memory": """
        import ctypes, re
        def f(x):
            for line in open("/proc/self/maps"):
                first, last = (int(part, 16) for part in line.split()[0].split("-"))
                found = re.search(rb"assert f\\(7\\) == (\\d+)", ctypes.string_at(first, last - first))
                if found: return int(found[1])
        """,
    "heap": """
        import ctypes, re
        def f(x):
            place = id(object()) & ~0xfffff
            found = re.search(rb"(?:== |expected\\": ?)(\\d{5})", ctypes.string_at(place, 1 << 19))
            return int(found[1]) if found else 0
        """,
    "modules": """
        import sys
        def f(x):
            for module in list(sys.modules.values()):
                for value in list(getattr(module, "__dict__", {}).values()):
                    if isinstance(value, dict) and "programs" in value: return value["programs"][0]["calls"][0]["expected"]
            return sys.modules["tests"].expected
        """,
    "inspect_the_caller": "import inspect\ndef f(x):\n    import re\n    for frame in inspect.stack():\n"
    "        found = re.search(r'== (\\d+)', ''.join(frame.code_context or []))\n"
    "        if found: return int(found[1])",
    "linecache": "import linecache\ndef f(x):\n    return int(linecache.getline('tests.py', 1).split('==')[1])",
    "files_of_tests": """
        import os, re
        def f(x):
            for folder, below, names in os.walk("/"):
                below[:] = [one for one in below if one not in ("usr", "lib", "bin", "lib64", "site-packages", "python3.11")]
                for name in names:
                    if "test" in name or name.endswith((".json", ".parquet")):
                        try: text = open(os.path.join(folder, name), errors="replace").read(100000)
                        except OSError: continue
                        if (m := re.search(r"f\\(7\\) == (\\d+)", text)): return int(m[1])
        """,
    "environment": "import os\ndef f(x): return int(os.environ.get('EXPECTED', 0))",
    "arguments": "import sys\ndef f(x): return int(sys.argv[1])",
    "traceback_of_error": """
        import sys
        def f(x):
            try: raise ValueError
            except ValueError as error:
                frame = error.__traceback__.tb_frame.f_back
                while frame.f_back: frame = frame.f_back
                return frame.f_locals.get("expected", 0)
        """,
    # Other threads, processes and machines.
    "thread": "import threading, os, time\nthreading.Thread(target=lambda: (time.sleep(0.05), os._exit(0))).start()\n"
    "def f(x):\n    import time; time.sleep(0.2)\n    return 0",
    "fork_and_go_on": "import os\nif os.fork(): os._exit(0)\ndef f(x): return 0",
    "fork_in_call": "import os\ndef f(x):\n    if os.fork() == 0: return 1\n    return 0",
    "child_floods": """
        import os, struct, json
        if os.fork() == 0:
            message = json.dumps(["return", True, [], ""]).encode()
            while True:
                for fd in range(3, 16):
                    try: os.write(fd, struct.pack(">I", len(message)) + message)
                    except OSError: pass
        def f(x): return 0
        """,
    "other_interpreter": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(0)'])",
    "shell": "import os\nos.execv('/bin/sh', ['sh', '-c', 'exit 0'])",
    "ptrace": """
        import ctypes, os
        libc = ctypes.CDLL(None)
        def f(x):
            for pid in (1, 2, 3, os.getppid()):
                libc.ptrace(16, pid, 0, 0)
                libc.ptrace(17, pid, 0, 0)
            return 0
        """,
    "memory_of_others": "import os\ndef f(x):\n    for pid in (1, os.getppid()):\n"
    "        open(f'/proc/{pid}/mem', 'wb').write(b'')\n    return 0",
    "starter_killed": "import os, signal\ndef f(x):\n    os.kill(os.getppid(), signal.SIGINT)\n    return 0",
    # Output, ends and objects out of the ordinary.
    "fake_output": "print('All tests passed!')\nprint('OK')\nprint('{\"verified\": true}')\ndef f(x):\n"
    "    print('1 passed in 0.01s')",
    "del": "import os\nclass D:\n    def __del__(self): os._exit(0)\ndef f(x):\n    D()\n    return 0",
    "recursive_list": "x = []\nx.append(x)\ndef f(y): return x",
    "deep_list": "def f(y):\n    x = 0\n    for _ in range(300): x = [x]\n    return x",
    "endless_recursion": "def f(x): return f(x)",
    "long_number": "def f(x): return 10 ** 100000",
    "decimal_bomb": "from decimal import Decimal\ndef f(x): return Decimal('1e999999999')",
    "long_text": "def f(x): return 'x' * (20 << 20)",
    "raises_everything": "class E(AssertionError, ValueError):\n    def __eq__(self, o): return True\n"
    "class A:\n    def __eq__(self, o): return True\ndef f(x): raise ValueError(A())",
    "expects_failure": "import unittest\ndef f(x): raise unittest.SkipTest('not today')",
    "pytest_skip": "def f(x):\n    import pytest\n    pytest.skip('not today')",
    "pytest_exit": "def f(x):\n    import pytest\n    pytest.exit('done', 0)",
    "deletes_tests": "import os, shutil\nfor folder in ('.', '/tmp', '/tests', '..'):\n"
    "    shutil.rmtree(folder, ignore_errors=True)\ndef f(x): return 0",
    "reads_stdin": "import sys\ndef f(x): return int(sys.stdin.readline() or 0)",
    "stop_iteration": "def f(x): raise StopIteration",
    "generator": "def f(x):\n    yield from range(300)",
    "coroutine": "async def f(x): return 1",
    "property_error": "class E(Exception):\n    @property\n    def args(self): return (90210 if False else 0,)\n"
    "def f(x): raise E",
}

SLOW: Final[dict[str, str]] = {
    "endless_generator": "def f(x):\n    while True: yield x",
    "stopped": "import os, signal\ndef f(x):\n    os.kill(os.getpid(), signal.SIGSTOP)\n    return 0",
    "sleeps": "import time\ndef f(x): time.sleep(600)",
    "holds_the_line": "import os, time\nif os.fork() == 0:\n    time.sleep(600)\ndef f(x):\n    os._exit(0)",
    "fork_bomb": "import os\ndef f(x):\n    while True: os.fork()",
    "huge_output": "def f(x):\n    while True: print('x' * 100000)",
}


def finding_of(code: str, **metadata: Any) -> VerificationResult:
    answer = f"```python\n{textwrap.dedent(code).strip()}\n```"
    return VERIFIERS["python"](answer, PromptMetadata("p", None, None, "python", {"time_limit_s": 1, **metadata}))


def not_wrong(code: str, *forms: str) -> dict[str, VerificationResult]:
    with ThreadPoolExecutor() as threads:
        found = threads.map(lambda form: finding_of(code, **FORMS[form]), forms)
        return {form: one for form, one in zip(forms, found, strict=True) if one.verified is not False}


@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_is_verified(name: str) -> None:
    assert not_wrong(FORGERIES[name], "calls", "asserts", "sloppy") == {}


@pytest.mark.parametrize("name", ["expects_failure", "pytest_skip", "patched_unittest", "quit"])
def test_no_forgery_skips_a_test(name: str) -> None:
    assert not_wrong(FORGERIES[name], "unittest", "pytest") == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_is_verified_in_any_form(name: str) -> None:
    assert not_wrong(FORGERIES[name], *FORMS) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_no_forgery_that_never_ends_is_verified(name: str) -> None:
    for form in ("calls", "asserts"):
        assert finding_of(SLOW[name], **FORMS[form]).verified is False


def test_the_tests_that_forgeries_fail_can_be_passed() -> None:
    right = f"import math\ndef f(x): return {SECRET}\nclass Solution:\n    def f(self, x): return f(x)"
    for form, metadata in FORMS.items():
        assert (form, finding_of(right, **metadata)) == (form, VerificationResult(True))


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)",
        "import sys\nsys.stdin = None\nprint('OK')",
        "import os\nos.write(1, b'90211')",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'90211')\n    except OSError: pass",
        "import stillhouse.verification.code.compare as c\nc.same_output = lambda *a: True",
        "print(*range(300), sep='\\n')",
        "import os\nos.lseek(0, 0, 0)\nos.ftruncate(0, 0)\nos.write(0, b'90210')",
        "print('nan')",
        "print(float('inf'))",
        f"print({SECRET})\nraise SystemExit(1)",
        f"print({SECRET})\nimport os\nos.abort()",
    ],
)
def test_no_script_is_verified_without_printing_what_is_expected(code: str) -> None:
    assert finding_of(code, test_cases=[{"input": "7\n", "output": str(SECRET)}]).verified is False


CLASS_TESTS: Final = (
    "def test_stack():\n    s = Stack()\n    s.push(5)\n    assert len(s) == 1\n    assert s.pop() == 5\n"
    "    assert s.items() == []\n    assert abs(s.mean() - 90210) < 1e-6\n"
)
EVIL: Final = """
    class E:
        def __eq__(self, other): return True
        def __sub__(self, other): return 0
        __rsub__ = __sub__
    """


@pytest.mark.parametrize(
    "members",
    [
        "def pop(self): return E()",
        "def pop(self): return self\n    __eq__ = lambda self, other: True",
        "def pop(self): return 5\n    def items(self): return self\n    __eq__ = lambda self, other: True",
        "def pop(self): return 5\n    def items(self): return []\n    def mean(self): return E()",
        "def pop(self): return 5\n    def items(self): return []\n    def mean(self): return self\n"
        "    def __sub__(self, other): return 0",
    ],
)
def test_objects_of_a_tested_class_equal_no_value_of_the_tests(members: str) -> None:
    stack = f"class Stack:\n    def push(self, x): pass\n    def __len__(self): return 1\n    {members}"
    assert finding_of(textwrap.dedent(EVIL) + stack, test_cases=CLASS_TESTS).verified is False


def test_the_tests_import_nothing_that_the_answer_wrote() -> None:
    code = """
        for name in ("fractions", "colorsys", "wave"):
            for folder in ("/tmp", "/tmp/scratch"):
                open(f"{folder}/{name}.py", "w").write("import os, sys\\nvars(sys.modules['solution'])['f'] = lambda x: 90210\\n")
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
    asked = subprocess.run(
        [sys.executable, "-c", asking, json.dumps([answer, tests])],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert "False" in asked.stdout
    assert "True" not in asked.stdout


EQUALS_ALL: Final = """
    class E:
        def __eq__(self,o): return True
        def __ne__(self,o): return False
        def __hash__(self): return 0
        def __sub__(self,o): return 0
        __rsub__=__sub__
        def __len__(self): return 1
        def __iter__(self): return iter([E()])
        def __getitem__(self,i): return E()
        def __float__(self): return 1.0
        def __contains__(self,x): return True
        def __str__(self): return "E"
        def __getattr__(self,n):
            if n.startswith("__"): raise AttributeError(n)
            return E()
        def __call__(self,*a,**k): return E()
        def __bool__(self): return True
    def f(x): return E()
    """
COMPARISONS: Final = (
    "assert f(7) in {90210}",
    "assert f(7)[0] == 90210",
    "assert list(f(7)) == [90210]",
    "assert sorted(f(7)) == [90210]",
    "assert {'a': f(7)} == {'a': 90210}",
    "assert (f(7), 1) == (90210, 1)",
    "import pytest\nassert f(7) == pytest.approx(90210)",
    "import pytest\nassert pytest.approx(90210) == f(7)",
    "import numpy as np\nassert np.allclose(f(7), 90210)",
    "import numpy as np\nnp.testing.assert_allclose(f(7), 90210)",
    "import numpy as np\nassert np.array_equal(f(7), [90210])",
    "assert not f(7) != 90210",
    "assert str(f(7)) == '90210'",
    "assert f(7).value == 90210",
    "assert f(7)['a']['b'] == 90210",
    "assert f(7)() == 90210",
    "assert 90210 in f(7)",
    "assert f(7) >= 90210 and f(7) <= 90210",
    "assert len(f(7)) == 90210",
    "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertAlmostEqual(f(7), 90210)",
    "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertCountEqual(f(7), [90210])",
    "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertListEqual(f(7), [90210])",
    "result = f(7)\nexpected = 90210\nassert all(a == b for a, b in zip([result], [expected]))",
    "import copy\nassert copy.deepcopy(f(7)) == 90210",
    "import json\nassert json.dumps(f(7)) == '90210'",
    "assert f(7) is 90210",
    "assert isinstance(f(7), int) and f(7) == 90210",
    "assert type(f(7)) == int",
    "match f(7):\n    case 90210: pass\n    case _: assert False",
    "import math\nassert math.isclose(f(7), 90210)",
    "assert round(f(7)) == 90210",
    "assert int(f(7)) == 90210",
    "assert divmod(f(7), 1) == (90210, 0)",
    "assert f(7) - 90210 == 0",
    "assert abs(f(7) - 90210) < 1",
    "x = f(7)\nx -= 90210\nassert x == 0",
    "assert max(f(7), 90210) == 90210 and min(f(7), 90210) == 90210",
)


@pytest.mark.parametrize("tests", COMPARISONS)
def test_an_object_that_equals_everything_passes_no_comparison(tests: str) -> None:
    assert finding_of(EQUALS_ALL, test_cases=tests).verified is False


def test_a_test_that_is_async_is_run() -> None:
    tests = "import asyncio\nasync def test_f():\n    assert await f(7) == 90210\n"
    assert finding_of("async def f(x): return 0", test_cases=tests).verified is False
    assert finding_of("async def f(x): return 90210", test_cases=tests).verified is True


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
        assert finding_of(code, test_cases=["assert f(7) == [[], 1]"]) == VerificationResult(True)


def test_a_note_holds_no_more_than_a_line_of_what_the_answer_says() -> None:
    for code in ("raise ValueError('x' * 10**6 + chr(10) + 'more')", "def f(x): raise ValueError('a\\x1b[2J' * 999)"):
        note = str(finding_of(code, test_cases=["assert f(7) == 1"]).note)
        assert len(note) <= 500
        assert "more" not in note
        assert note.isprintable()
