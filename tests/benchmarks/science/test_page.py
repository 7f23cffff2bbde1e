import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.frame.rounds import spread
from benchmarks.science.experiments import EXPERIMENTS
from benchmarks.science.findings import Curve, CurvePoint, SeedResult
from benchmarks.science.page import number, range_of, write_page


def result(seed: int) -> SeedResult:
    points = [CurvePoint(step, min(1.0, 0.2 * step + 0.1 * seed), 10.0 * step, 1e6 * step) for step in range(5)]
    figures = {claim.figure: 4.0 + 2 * seed for claim in EXPERIMENTS["e1"].claims}
    return SeedResult(seed, {"fast & good": Curve(points), "slow": Curve(points[:2])}, figures, target=0.6)


def test_the_page_needs_nothing_beside_it_and_says_what_was_found(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", {"e1": [result(0), result(1)]}, quick=False)
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 2
    for shown in ("fast &amp; good", "5 (4 to 6)", "holds by the median", "\u221e"):
        assert shown in text
    for outside in ("http://", "https://", "<script", "url(#e1-curves-e1", "no figure means"):
        assert outside not in text


def test_a_quick_page_says_that_its_figures_mean_nothing(tmp_path: Path) -> None:
    figures = {claim.figure: 1.0 for claim in EXPERIMENTS["e3"].claims}
    write_page(tmp_path / "page.html", {"e3": [replace(result(0), target=None, figures=figures)]}, quick=True)
    text = (tmp_path / "page.html").read_text()
    assert "no figure" in text
    assert text.count("<svg") == 1


@pytest.mark.parametrize(
    ("value", "text"), [(math.inf, "\u221e"), (6.2857, "6.29"), (1234.0, "1,234"), (1.3e11, "1.3e+11"), (-25.0, "-25")]
)
def test_numbers_have_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_a_range_is_left_out_where_seeds_agree() -> None:
    assert range_of(spread([2.0, 2.0])) == "2"
    assert range_of(spread([1.0, 2.0, math.inf])) == "2 (1 to \u221e)"
