"""Figures in, findings out: what each figure leads to, and the remedy that it names."""

from typing import Any

import pytest

from stillhouse.training.pair.finding import PairFinding, verdict_of
from stillhouse.training.pair.rendering import rendering_finding
from stillhouse.training.pair.teacher import Agreement, ends_finding, tokens_finding

AGREEMENT = Agreement(200, kl=0.4, worst_share=0.3, nll=1.2, best=(20, 0.6, 0.1))
STOPS = "they stop at 0 and 2. Train it"


@pytest.mark.parametrize(
    ("own_nll", "nll", "differing", "level", "says"),
    [
        pytest.param(0.8, 1.2, 0.1, "fine", "1000 ids shared", id="healthy"),
        pytest.param(0.8, 15.0, 0.99, "no", "the ids mean something else", id="shifted"),
        pytest.param(0.8, 4.5, 0.97, "no", "differ at 97%", id="shifted, flat teacher"),
        pytest.param(0.8, 4.5, 0.4, "fine", "", id="far apart"),
        pytest.param(0.8, 8.0, None, "no", "", id="no best tokens"),
        pytest.param(6.5, 7.5, 0.1, "change", "Train it with SFT first", id="random student"),
    ],
)
def test_tokens_that_cost_more_than_a_guess_are_another_vocabularys(
    own_nll: float, nll: float, differing: float | None, level: str, says: str
) -> None:
    found = AGREEMENT._replace(nll=nll, best=None if differing is None else (20, 0.6, differing))
    finding = tokens_finding("big", found, own_nll, 1000, "1000 ids shared")
    assert (finding.level, says in finding.detail) == (level, True), finding


@pytest.mark.parametrize(
    ("nats", "level", "says"),
    [
        (None, "fine", "both templates render alike"),
        (0.01, "fine", "+0.010 nats"),
        (0.287, "change", "set `template: own`"),
        (-0.5, "change", "chat_template is not the one"),
    ],
)
def test_the_rendering_is_judged_by_nats_a_token(nats: float | None, level: str, says: str) -> None:
    finding = rendering_finding("big", nats)
    assert (finding.level, says in finding.detail) == (level, True), finding


@pytest.mark.parametrize(
    ("chances", "stop_warning", "level"),
    [
        ([0.8, 0.9], None, "fine"),
        ([0.01, 0.9], None, "change"),
        ([0.01, 0.02], None, "fine"),
        ([], None, "unknown"),
        ([0.8, 0.9], STOPS, "fine"),
        ([], STOPS, "change"),
        ([0.01, 0.9], STOPS, "change"),
    ],
)
def test_ends_are_judged_by_the_teachers_probability_of_them(
    chances: list[float], stop_warning: str | None, level: str
) -> None:
    finding = ends_finding("big", chances, stop_warning)
    assert finding.level == level, finding


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [(["fine", "unknown"], "go"), (["fine", "change"], "go with this changed"), (["change", "no"], "no"), ([], "go")],
)
def test_the_gravest_finding_is_the_verdict(levels: list[Any], verdict: str) -> None:
    assert verdict_of(PairFinding("a", level, "b") for level in levels) == verdict
