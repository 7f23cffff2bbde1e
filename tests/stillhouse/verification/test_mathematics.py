import asyncio
import time
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


@pytest.mark.slow
def test_comparison_without_end_leaves_the_answer_unverified_and_the_next_one_goes_on(find) -> None:
    started = time.monotonic()
    result = find("math", "\\boxed{9^{9^{9^{9}}}}", "3")
    assert time.monotonic() - started < 60
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
