"""Ranges of totals: wide from three rollouts, narrower from more, and true of nineteen runs in twenty."""

import random
from collections.abc import Callable

import pytest

from stillhouse.config import RolloutsConfig
from stillhouse.forecast.line import Line, Work, line_of
from stillhouse.forecast.ranges import Range, exactly, mean_of
from stillhouse.forecast.survey import Figures, Survey
from stillhouse.inference.endpoint import Endpoint, Price
from stillhouse.tools import Toolbox

PRICE = Price(0.25, 2.0)
ENDPOINT = Endpoint("https://models.example/v1", "m", "m@models.example", price=PRICE)
SAMPLING = RolloutsConfig(max_tokens=4000)


def answers(rng: random.Random) -> Callable[[], float]:
    """Return a source of lengths in tokens, of a distribution of its own."""
    centre, deviation, share, times = (
        rng.uniform(20, 800),
        rng.uniform(0.1, 1.0),
        rng.uniform(0.05, 0.5),
        rng.uniform(2, 8),
    )
    return rng.choice(
        [
            lambda: centre,
            lambda: rng.uniform(centre * share, centre),
            lambda: rng.expovariate(1 / centre),
            lambda: rng.gammavariate(1 / deviation, centre * deviation),
            lambda: centre * rng.lognormvariate(0.0, deviation),
            lambda: centre * (times if rng.random() < share else 1.0),
        ]
    )


def rollouts(rng: random.Random, number: int) -> list[Figures]:
    answer, ratio = answers(rng), rng.uniform(0.2, 0.6)
    figures = []
    for _ in range(number):
        characters = rng.randint(100, 4000)
        sampled = min(max(1, round(answer())), SAMPLING.max_tokens)
        sent = round(characters * ratio * rng.uniform(0.9, 1.1))
        usd = PRICE.of({"prompt_tokens": sent, "completion_tokens": sampled})
        figures.append(Figures(characters, 1, sent, sampled, usd))
    return figures


def foreseen(seen: list[Figures], rest: list[Figures]) -> Line:
    found = Survey(ENDPOINT, [], SAMPLING, Toolbox([]), {}, None)
    characters = sum(figures.characters for figures in rest) / len(rest)
    return line_of("rollouts", "prompts", found, Work(exactly(len(rest)), exactly(characters), len(seen)), seen)


@pytest.mark.parametrize("num_seen", [3, 5, 20])
def test_the_range_holds_the_real_total_in_nine_of_ten_cases(num_seen: int) -> None:
    held = {"usd": 0, "completion_tokens": 0, "prompt_tokens": 0}
    for seed in range(200):
        rng = random.Random(seed)
        population = rollouts(rng, rng.choice([50, 300, 1000]))
        line = foreseen(population[:num_seen], population[num_seen:])
        for name in held:
            total = sum(getattr(figures, name) for figures in population[num_seen:])
            foretold = getattr(line, name)
            held[name] += foretold.low <= total <= foretold.high
            assert line.worst_usd is not None
            assert foretold.low <= foretold.likely <= foretold.high
    assert min(held.values()) >= 180, held


def test_with_nothing_seen_the_range_reaches_from_nearly_nothing_to_the_worst_case() -> None:
    population = rollouts(random.Random(0), 100)
    line = foreseen([], population)
    assert line.requests == exactly(100)
    assert line.completion_tokens == Range(100, None, 100 * SAMPLING.max_tokens)
    assert line.usd is not None
    assert line.worst_usd is not None
    assert line.usd.high == pytest.approx(line.worst_usd)
    assert line.usd.low < sum(figures.usd or 0.0 for figures in population) < line.usd.high


def test_more_rollouts_narrow_the_range_and_alike_ones_do_not_make_it_certain() -> None:
    bounds = Range(1, None, 10_000)
    few, many = mean_of([100.0] * 3, 1000, bounds), mean_of([100.0] * 200, 1000, bounds)
    assert few.low < 80 < 125 < few.high
    assert 95 < many.low < many.high < 105


def test_no_range_passes_what_the_config_allows() -> None:
    assert mean_of([90.0, 100.0, 100.0], 1000, Range(1, None, 100)).high == 100


def test_an_unknown_price_makes_unknown_money_unless_answers_told_what_they_cost() -> None:
    unpriced = Endpoint("https://models.example/v1", "m", "m@models.example")
    found = Survey(unpriced, [], SAMPLING, Toolbox([]), {}, None)
    work = Work(exactly(100), exactly(400), 0)
    told = [Figures(400, 1, 100, 50, 0.002)] * 3
    untold = [Figures(400, 1, 100, 50, None)] * 3
    assert line_of("rollouts", "prompts", found, work, untold).usd is None
    assert line_of("rollouts", "prompts", found, work, []).usd is None
    usd = line_of("rollouts", "prompts", found, work, told).usd
    assert usd is not None
    assert usd.low < 0.2 < usd.high


def test_each_turn_with_tools_sends_the_earlier_ones_again() -> None:
    found = Survey(ENDPOINT, [], RolloutsConfig(max_turns=4, max_tokens=100), Toolbox([]), {}, None)
    found.offers_tools = True
    line = line_of("rollouts", "prompts", found, Work(exactly(1), exactly(400), 0, max_result=1000), [])
    # Four turns and a closing answer; of 5 requests the last sends four answers and results.
    assert line.requests == Range(1, None, 5)
    assert line.completion_tokens.high == 500
    assert line.prompt_tokens.high == 5 * (400 + 64) + (100 + 1000 + 64) * (0 + 1 + 2 + 3 + 4)
    capped = found.config.model_copy(update={"max_rollout_tokens": 2000})
    found.config = capped
    assert line_of("rollouts", "prompts", found, Work(exactly(1), exactly(400), 0, 1000), []).prompt_tokens.high == 2000
