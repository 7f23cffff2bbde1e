"""Right answers, and tests of the forms that datasets hold: nothing that keeps forgeries out may keep these out."""

# ruff: noqa: E501 -- programs in strings

import textwrap
from collections.abc import Callable

import pytest

from stillhouse.verification.result import VerificationResult

Find = Callable[..., VerificationResult]

HONEST: dict[str, tuple[str, str]] = {
    "values_of_every_kind": (
        "def f(x): return x",
        "import math\n"
        "for value in (None, True, 0, -1, 10**30, 1.5, 'é\\n', b'\\x00', [1, [2]], (1, (2,)), {1, 2}, frozenset({3}),\n"
        "              {'a': 1, (1, 2): [3]}, 1 + 2j, range(3), float('inf')):\n"
        "    assert f(value) == value and type(f(value)) is type(value)\n"
        "assert math.isnan(f(math.nan))\nassert f(True) is True and f(None) is None\nassert 1 < f(2) <= 2",
    ),
    "library_values": (
        "def f(x): return x",
        "from collections import Counter, OrderedDict, deque\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
        "import datetime\nfor value in (Counter('aab'), OrderedDict(a=1), deque([1]), Decimal('1.10'), Fraction(1, 3),\n"
        "              datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3), datetime.timedelta(1)):\n"
        "    assert f(value) == value and type(f(value)) is type(value)",
    ),
    "approximate": (
        "import math\ndef area(r): return math.pi * r * r",
        "import math\nassert math.isclose(area(2), 12.566370614)\nassert abs(area(1) - math.pi) < 1e-9\n"
        "assert round(area(1), 2) == 3.14\nassert area(1) == __import__('pytest').approx(3.14159, rel=1e-4)",
    ),
    "names_of_the_answers_imports": (
        "import math\nfrom collections import Counter\nfrom typing import List\ndef f(x: List[int]): return Counter(x)",
        "def helper(x: List[int]) -> int: return math.floor(x[0])\nassert f([1, 1]) == Counter([1, 1])\n"
        "assert helper([2.5]) == 2",
    ),
    "errors": (
        "class Empty(Exception):\n    def __init__(self, size): super().__init__(f'no {size}'); self.size = size\n"
        "def f(x):\n    if x < 0: raise ValueError('negative')\n    raise Empty(x)",
        "import pytest\nfrom solution import Empty\nwith pytest.raises(ValueError, match='nega'): f(-1)\n"
        "with pytest.raises(Empty) as raised: f(3)\nassert raised.value.size == 3 and str(raised.value) == 'no 3'\n"
        "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'negative'",
    ),
    "library_errors": (
        "import json\ndef f(x): return json.loads(x)",
        "import json\ntry:\n    f('{')\n    assert False\nexcept json.JSONDecodeError as error:\n"
        "    assert isinstance(error, ValueError)\n"
        "def test_key():\n    import pytest\n    with pytest.raises(KeyError): f('{}')['a']",
    ),
    "arguments_changed_in_place": (
        "def f(x): x.sort(); return None\ndef g(grid): grid[0][0] = 9\ndef h(d, s): d['a'] = 1; s.add(2)",
        "x = [3, 1]\nassert f(x) is None and x == [1, 3]\ngrid = [[1, 2], [3]]\nrow = grid[0]\ng(grid)\n"
        "assert grid == [[9, 2], [3]] and row == [9, 2]\nd, s = {}, set()\nh(d, s)\nassert d == {'a': 1} and s == {2}",
    ),
    "callbacks": (
        "def apply(fn, *xs, **named): return [fn(x) for x in xs] + sorted(named)\n"
        "def order(xs, key): return sorted(xs, key=key)\ndef fold(fn, xs):\n    import functools\n"
        "    return functools.reduce(fn, xs)",
        "import operator\nseen = []\nassert apply(lambda x: x * 2, 1, 2, b=1, operation=2) == [2, 4, 'b', 'operation']\n"
        "assert apply(seen.append, 5) == [None] and seen == [5]\nassert order(['bb', 'a'], key=len) == ['a', 'bb']\n"
        "assert fold(operator.add, [1, 2, 3]) == 6\n"
        "def wrong(x): raise LookupError(x)\ntry:\n    apply(wrong, 4)\n    assert False\n"
        "except LookupError as error:\n    assert error.args == (4,)",
    ),
    "decorators_and_closures": (
        "def twice(fn):\n    def inner(*a): return fn(fn(*a))\n    return inner\n"
        "def counter():\n    n = 0\n    def step():\n        nonlocal n; n += 1; return n\n    return step",
        "@twice\ndef add(x): return x + 1\nassert add(1) == 3\nstep = counter()\nassert (step(), step()) == (1, 2)",
    ),
    "class_with_state": (
        "class Stack:\n    kind = 'lifo'\n    def __init__(self, items=()): self.items = list(items)\n"
        "    def push(self, x): self.items.append(x); return self\n    def pop(self): return self.items.pop()\n"
        "    def __len__(self): return len(self.items)\n    def __contains__(self, x): return x in self.items\n"
        "    def __iter__(self): return iter(self.items)\n    def __repr__(self): return f'Stack({self.items})'\n"
        "    def __getitem__(self, i): return self.items[i]\n    def __bool__(self): return bool(self.items)\n"
        "    @property\n    def top(self): return self.items[-1]\n    @staticmethod\n    def of(*x): return Stack(x)\n",
        "import pytest\ns = Stack()\nassert not s and len(s) == 0\nassert s.push(1).push(2) is s\n"
        "assert s and len(s) == 2 and s.top == 2 and s[0] == 1 and list(s) == [1, 2] and 2 in s and 3 not in s\n"
        "assert repr(s) == str(s) == f'{s}' == 'Stack([1, 2])'\nassert isinstance(s, Stack) and Stack.kind == 'lifo'\n"
        "assert s.items == [1, 2] and hasattr(s, 'pop') and not hasattr(s, 'peek')\ns.items = [7]\n"
        "assert s.pop() == 7\nwith pytest.raises(IndexError): s.pop()\nassert sorted(Stack.of(2, 1)) == [1, 2]",
    ),
    "operators_of_a_class": (
        "class V:\n    def __init__(self, x, y): self.x, self.y = x, y\n"
        "    def __add__(self, o): return V(self.x + o.x, self.y + o.y)\n"
        "    def __mul__(self, k): return V(self.x * k, self.y * k)\n    __rmul__ = __mul__\n"
        "    def __eq__(self, o): return isinstance(o, V) and (self.x, self.y) == (o.x, o.y)\n"
        "    def __hash__(self): return hash((self.x, self.y))\n    def __lt__(self, o): return self.x < o.x\n"
        "    def __abs__(self): return 5.0\n    def __neg__(self): return V(-self.x, -self.y)\n",
        "a = V(1, 2)\nb = V(3, 4)\nassert a.x == 1\nassert a + b == V(4, 6) and a != b\nassert (a * 3).y == 6\n"
        "assert (2 * a).y == 4\nassert a < b and sorted([b, a])[0] is a and max(a, b) == b\nassert abs(b) == 5\n"
        "assert (-a).x == -1\nassert len({V(1, 2), a}) == 1 and {a: 1}[V(1, 2)] == 1\nassert a in [b, a]",
    ),
    "dataclasses_enums_and_tuples": (
        "from dataclasses import dataclass\nfrom enum import Enum, IntEnum\nfrom collections import namedtuple\n"
        "@dataclass\nclass P:\n    x: int\n    y: int = 0\nclass C(Enum):\n    RED = 1\n    BLUE = 2\n"
        "class L(IntEnum):\n    LOW = 1\nN = namedtuple('N', 'a b')\ndef f(x): return P(x)\ndef g(): return C.RED\n"
        "def h(): return N(1, 2)",
        "assert f(3) == P(3) and f(3).x == 3 and P(1, y=2).y == 2\nassert g() == C.RED and g() is C.RED\n"
        "assert g().value == 1 and g().name == 'RED' and C(2) == C.BLUE\nassert h() == (1, 2) and h().a == 1 and h()[1] == 2\n"
        "a, b = h()\nassert b == 2 and L.LOW == 1",
    ),
    "subclass_of_a_list": (
        "class Bag(list):\n    def push(self, x): self.append(x)\n    def total(self): return sum(self)",
        "b = Bag([1])\nb.push(2)\nassert len(b) == 2 and b.total() == 3 and list(b) == [1, 2] and 2 in b",
    ),
    "generators": (
        "def count(n):\n    for i in range(n): yield i\ndef echo():\n    got = None\n    while True: got = yield got",
        "import itertools\nassert list(count(3)) == [0, 1, 2]\nassert next(count(1)) == 0\ng = count(1)\nnext(g)\n"
        "try:\n    next(g)\n    assert False\nexcept StopIteration:\n    pass\n"
        "assert list(itertools.islice(count(10**9), 2)) == [0, 1]\nassert sum(count(4)) == 6\n"
        "e = echo()\nnext(e)\nassert e.send(5) == 5",
    ),
    "coroutines": (
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1",
        "import asyncio\nassert asyncio.run(f(1)) == 2\nasync def test_f():\n    assert await f(2) == 3",
    ),
    "context_managers": (
        "import contextlib\nclass R:\n    log = []\n    def __enter__(self): self.log.append('in'); return self\n"
        "    def __exit__(self, *a): self.log.append('out')\n    def use(self): return 1\n"
        "@contextlib.contextmanager\ndef opened(x):\n    yield x",
        "with R() as r:\n    assert r.use() == 1\nassert R.log == ['in', 'out']\nwith opened(3) as x:\n    assert x == 3",
    ),
    "nodes_of_the_tests": (
        "def total(node):\n    return 0 if node is None else node.val + total(node.left) + total(node.right)\n"
        "def grow(node, make):\n    node.left = make(5)\n    return node",
        "class Node:\n    def __init__(self, val, left=None, right=None): self.val, self.left, self.right = val, left, right\n"
        "assert total(Node(1, Node(2), Node(3, Node(4)))) == 10\nroot = Node(0)\nassert grow(root, Node) is root\n"
        "assert root.left.val == 5",
    ),
    "nodes_of_the_answer": (
        "class Node:\n    def __init__(self, val, next=None): self.val, self.next = val, next\n"
        "def reverse(head):\n    last = None\n    while head: head.next, last, head = last, head, head.next\n    return last",
        "head = Node(1, Node(2, Node(3)))\nthird = head.next.next\nhead = reverse(head)\nassert head is third\n"
        "seen = []\nwhile head:\n    seen.append(head.val)\n    head = head.next\nassert seen == [3, 2, 1]",
    ),
    "printing_and_reading": (
        "def greet(name): print('hello', name)\ndef ask():\n    return int(input()) * 2",
        "import io, sys\nfrom contextlib import redirect_stdout\nfrom unittest.mock import patch\nout = io.StringIO()\n"
        "with redirect_stdout(out): greet('you')\nassert out.getvalue() == 'hello you\\n'\n"
        "with patch('builtins.input', return_value='21'): assert ask() == 42\n"
        "with patch('builtins.print') as printed: pass\nsys.stdin = io.StringIO('4\\n')\nassert ask() == 8",
    ),
    "patched_names": (
        "import time\ndef now(): return 1\ndef f(): return now() + 1\ndef g(): time.sleep(600); return 3",
        "from unittest.mock import patch\nimport solution\nwith patch('solution.now', return_value=5): assert solution.f() == 6\n"
        "assert solution.f() == 2\nwith patch('solution.time.sleep'): assert solution.g() == 3",
    ),
    "random_seeds": (
        "import random\ndef f(): return random.randint(0, 10**9)",
        "import random\nrandom.seed(3)\nexpected = random.randint(0, 10**9)\nrandom.seed(3)\nassert f() == expected",
    ),
    "arrays": (
        "import numpy as np\ndef f(x): return np.asarray(x) * 2\ndef g(a): a += 1\ndef mean(x): return np.mean(x)",
        "import numpy as np\nassert (f([1, 2]) == np.array([2, 4])).all() and f([1]).dtype == np.asarray([1]).dtype\n"
        "np.testing.assert_allclose(f(np.eye(2)), 2 * np.eye(2))\na = np.zeros(2)\ng(a)\nassert a.tolist() == [1, 1]\n"
        "assert mean([1, 2]) == 1.5 and f([[1]]).shape == (1, 1)",
    ),
    "files": (
        "def save(path, text):\n    with open(path, 'w') as file: file.write(text)",
        "import os, tempfile\nwith tempfile.TemporaryDirectory() as folder:\n    path = os.path.join(folder, 'a')\n"
        "    save(path, 'x')\n    assert open(path).read() == 'x'",
    ),
    "star_import": ("A = 3\ndef f(): return A", "from solution import *\nassert f() == A == 3"),
    "unittest_case": (
        "def f(x):\n    if x is None: raise TypeError('none')\n    return {'x': [x]}",
        "import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n    def setUp(self): self.x = 1\n"
        "    def test_a(self):\n        self.assertEqual(f(self.x), {'x': [1]})\n        self.assertIn('x', f(2))\n"
        "    def test_b(self):\n        with self.assertRaises(TypeError): f(None)\n"
        "        self.assertIsInstance(f(1), dict); self.assertAlmostEqual(f(1)['x'][0], 1.0)\n"
        "if __name__ == '__main__':\n    unittest.main()",
    ),
    "methods_named_as_ours": (
        "class A:\n    def ask(self, operation, *, name=1, self_=2): return operation + name + self_\n"
        "def call(target, args=1, named=2): return target + args + named",
        "assert A().ask(operation=1, name=2) == 5\nassert call(target=1, args=2) == 5",
    ),
    "threads_and_shared_state": (
        "import threading\nclass Bank:\n    def __init__(self): self.n = 0; self.lock = threading.Lock()\n"
        "    def add(self):\n        with self.lock: self.n += 1",
        "import threading\nb = Bank()\nfor _ in range(5): b.add()\nassert b.n == 5\n"
        "ts = [threading.Thread(target=b.add) for _ in range(4)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nassert b.n == 9",
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_a_right_answer_is_verified(find: Find, name: str) -> None:
    code, tests = HONEST[name]
    answer = f"```python\n{textwrap.dedent(code)}\n```"
    assert find("python", answer, None, test_cases=tests) == VerificationResult(True)


@pytest.mark.parametrize(
    ("tests", "verified", "note"),
    [
        ("class B(A): pass", None, "the tests derive a class from one of the answer's"),
        ("m = M([1])\nm.n\nassert m == [1]", None, "an object of the answer's own class"),
        ("import types\nassert A.f(types) == 1", None, "the tests give a module"),
        ("a = A()\nassert a.f(2) == 3", False, "AssertionError"),
    ],
)
def test_tests_that_cannot_be_put_from_outside_leave_an_answer_unverified(
    find: Find, tests: str, verified: bool | None, note: str
) -> None:
    code = "class A:\n    def f(self, x=0): return x\nclass M(list):\n    n = 1"
    result = find("python", f"```python\n{code}\n```", None, test_cases=tests)
    assert result.verified is verified
    assert note in str(result.note)
