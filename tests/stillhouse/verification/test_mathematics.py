import asyncio
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.types import PromptMetadata
from stillhouse.verification import verify

HALF = PromptMetadata("p", "\\frac{1}{2}", None, "math", {})


def is_half(answer: str) -> bool | None:
    return verify(answer, HALF)


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("The answer is $\\frac{1}{2}$", "0.5", True),
        ("\\boxed{x^2+2x+1}", "(x+1)^2", True),
        *(
            (product, "18", True)
            for product in ("3(6)", "(3)(6)", "(3)6", "3\\binom{4}{2}", "\\binom{4}{2}\\binom{3}{1}", "\\frac{9}{1}(2)")
        ),
        *(
            (product, "9", False)
            for product in ("3(6)", "(3)(6)", "(3)6", "3\\binom{4}{2}", "\\binom{4}{2}\\binom{3}{1}")
        ),
        ("3{6}", "9", None),
        ("R-r", "r-R", False),
        ("y=5", "x=5", False),
        ("x+y=5", "5", False),
        ("2x=10", "x=5", True),
        ("3x = 10^{-40}", "3x = 10^{-41}", False),
        ("x^2 = 4", "2x = 4", False),
        ("x + y > 3", "3 < y + x", True),
        ("x + y \\ge 3", "x + y > 3", False),
        ("2 = 2", "3 = 3", None),
        ("x = 3, y = 2", "x=2, y=3", False),
        ("3^3 = 27", "27", True),
        ("\\frac{1}{2^{98}}", "\\frac{1}{2^{99}}", False),
        ("\\frac{1}{2006!}", "\\frac{1}{2004!}", False),
        ("9.1 \\times 10^{-31}", "6.63 \\times 10^{-34}", False),
        ("101_8", "101_2", False),
        ("101_{2}", "101_2", True),
        ("5", "101_2", None),
        ("1, 3, 5, \\ldots, 2n-1", "1, 2, \\ldots, n", False),
        ("1, 2, \\dots, n", "1, 2, \\ldots, n", True),
        ("1, 2, 3, \\ldots, n", "1, 2, \\ldots, n", None),
        ("1 1/4", "5/4", True),
        ("1 1/4", "1/4", False),
        ("(3,1)", "(2,1)", False),
        ("1, 234", "1,234", False),
        ("0.\\overline{3}", "1/3", True),
        ("12 \\text{ m}", "12 \\text{ cm}", None),
        ("14 \\heartsuit 2", "28", None),
        ("12:00", "1:00", None),
        ("\\boxed{3x+2}", "2x+3", False),
        ("(x+1)^2", "x^2+2x+1", True),
        ("2x+3", "2x + 3", True),
        ("72 apples", "72", True),
        ("Answer: 71", "72", False),
        ("#### 72", "72", True),
        ("sqrt(2)/2", "\\frac{\\sqrt{2}}{2}", True),
        ("\\boxed{\\frac{\\sqrt2}{2}}", "sqrt(2)/2", True),
        ("\\boxed{2\\pi}", "2*pi", True),
        ("\\boxed{x=5}", "5", True),
        ("\\boxed{50\\%}", "0.5", True),
        ("\\boxed{10^{99}}", "10^{100}", False),
        ("The distance is 1,234.5", "1234.50", True),
        ("\\boxed{1} and \\boxed{2}", "\\{1,2\\}", True),
        ("\\boxed{[1,2]}", "x \\in [1,2]", True),
        ("\\boxed{(1, 2)}", "(1,2)", True),
        ("\\boxed{(2, 1)}", "(1,2)", False),
        ("\\boxed{\\text{even}}", "even", True),
        ("red", "\\text{blue}", False),
        ("I don't know", "3", False),
        ("???", "???", True),
        ("5", "???", None),
    ],
)
def test_formulas_are_compared_by_what_they_mean(find, answer: str, expected: str, verdict: bool | None) -> None:
    assert find("math", answer, expected).verified is verdict


@pytest.mark.slow
def test_comparison_without_end_leaves_the_answer_unverified_and_the_next_one_goes_on(find) -> None:
    result = find("math", "\\boxed{9^{9^{9^{9}}}}", "3")
    assert result.verified is None
    assert result.note
    assert find("math", "\\boxed{\\frac{2}{4}}", "\\frac12").verified is True


def test_formulas_are_compared_in_threads_event_loops_and_forked_processes() -> None:
    answers = ["0.5", "\\frac{2}{4}", "\\frac{2}{3}"] * 4
    verdicts = [True, True, False] * 4
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(is_half, answers)) == verdicts

    async def in_a_loop() -> list[bool | None]:
        return await asyncio.gather(*(asyncio.to_thread(is_half, answer) for answer in answers))

    assert asyncio.run(in_a_loop()) == verdicts
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as processes:
        assert list(processes.map(is_half, answers)) == verdicts
    assert is_half("\\frac{3}{6}") is True


@given(st.integers(1, 60), st.integers(1, 60), st.integers(-3, 3))
def test_tiny_and_huge_powers_are_told_apart(find, power: int, other: int, factor: int) -> None:
    # Numbers are compared without the algebra, so that many of them can be tried.
    small = find("math", f"{factor}.5 \\times 10^{{-{power}}}", f"{factor}.5 \\cdot 10^{{-{other}}}")
    assert small.verified is (power == other)
    assert find("math", f"2^{{{power}}}", f"2^{other}").verified is (power == other)


@given(
    st.text(max_size=40),
    st.sampled_from(["exact", "normalised", "contains", "numeric", "choice", "set", "list", "json"]),
)
def test_no_text_makes_a_verifier_raise(find, text: str, verifier: str) -> None:
    assert find(verifier, text, "[]").verified in (True, False, None)
    assert find(verifier, f"\\boxed{{{text}}}", "7").verified in (True, False, None)
