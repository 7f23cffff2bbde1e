"""`Line`: what a stage still asks a model for, and what that costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stillhouse.forecast.ranges import Range, mean_of
from stillhouse.forecast.survey import Figures, Survey
from stillhouse.inference.endpoint import Price

FEWEST_PER_CHARACTER: Final = 1 / 8
"""Tokens: English has about 0.25 a character, and few texts have more than 1."""
_ADDED: Final = 64  # tokens of a chat template or of a correction, at the worst


@dataclass(frozen=True, slots=True)
class Line:
    """The requests of one stage to one model that are not paid for."""

    stage: str
    model: str
    items: str
    """Name of what a person counts, such as `prompts`."""
    count: float
    """Items to come, at most."""
    num_paid: float
    """Items that the journal holds."""
    requests: Range
    prompt_tokens: Range
    completion_tokens: Range
    usd: Range | None
    """None where the price is unknown."""
    worst_usd: float | None
    """Cost if each completion is as long and each rollout has as many turns as the config lets them."""
    is_local: bool = False
    """Whether this machine serves the model, so that it costs nothing."""

    @property
    def tokens(self) -> Range:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Work:
    """Rollouts to come, and those of the journal."""

    count: Range
    characters: Range
    """Of the first request of each, on average."""
    num_paid: float
    max_result: int = 0
    """Most characters of a tool's result."""


def line_of(stage: str, items: str, found: Survey, work: Work, seen: Sequence[Figures], per_item: int = 1) -> Line:
    """Return the line of rollouts by `seen` ones, if there are any; `per_item` of them are one of `items`.

    As each turn sends all earlier ones again, the tokens of all of a rollout's prompts go by its first request.
    """
    count, num, characters = work.count, work.count.high, work.characters
    most = _most(found, work)
    requests = count * mean_of([s.requests for s in seen], num, Range(1.0, None, most.requests))
    bounds = Range(FEWEST_PER_CHARACTER, None, most.prompt_tokens / max(characters.high, 1.0))
    ratios, sizes = [s.prompt_tokens / s.characters for s in seen], [s.characters for s in seen]
    # The text of one turn differs little in tokens a character.
    deviation = 0.5 if most.requests > 1 else 0.15
    prompt = count * characters * mean_of(ratios, num, bounds, sizes, deviation)
    answers = Range(1.0, None, most.completion_tokens)
    completion = count * mean_of([s.completion_tokens for s in seen], num, answers)
    endpoint = found.endpoint
    price = Price(0.0, 0.0) if endpoint.is_local else endpoint.price
    worst = None
    if price is not None:
        worst = _worst(price, num * most.requests, num * most.prompt_tokens, num * most.completion_tokens)
    figures = (num / per_item, work.num_paid / per_item, requests, prompt, completion)
    usd = _usd(price, seen, count, requests, prompt, completion)
    return Line(stage, endpoint.model, items, *figures, usd, worst, endpoint.is_local)


def _most(found: Survey, work: Work) -> Figures:
    """Return the most that one rollout can take."""
    config, added, turns = found.config, found.config.max_tokens + _ADDED, 1
    if found.offers_tools:
        added, turns = added + work.max_result, config.max_turns + config.closing_answer
    elif config.response_schema:
        turns = min(config.max_turns, 1 + config.max_corrections)
    prompt = turns * (work.characters.high + _ADDED) + added * turns * (turns - 1) / 2
    cap = config.max_rollout_tokens or math.inf
    return Figures(work.characters.high, turns, min(prompt, cap), min(turns * config.max_tokens, cap), None)


def _usd(
    price: Price | None, seen: Sequence[Figures], count: Range, requests: Range, prompt: Range, completion: Range
) -> Range | None:
    costs = [s.usd for s in seen if s.usd is not None]
    is_known = len(seen) == len(costs) > 0
    if price is None:
        return count * mean_of(costs, count.high, Range(0.0, None, math.inf)) if is_known else None
    # What a cache held was cheaper, on which the upper end does not count. What was asked ahead of a batch was dearer.
    plain = sum(_plain(price, s.requests, s.prompt_tokens, s.completion_tokens) for s in seen)
    share = sum(costs) / plain if is_known and plain else 1.0
    likely = None
    if requests.likely is not None and prompt.likely is not None and completion.likely is not None:
        likely = min(share, 1.0) * _plain(price, requests.likely, prompt.likely, completion.likely)
    low = min(share, 1.0) * _plain(price, requests.low, prompt.low, completion.low)
    return Range(low, likely, max(share, 1.0) * _worst(price, requests.high, prompt.high, completion.high))


def _plain(price: Price, requests: float, prompt: float, completion: float) -> float:
    """Return USD for requests that share these tokens evenly, none of them cached."""
    num = max(requests, 1.0)
    each = price.of({"prompt_tokens": round(prompt / num), "completion_tokens": round(completion / num)})
    return requests * (each or 0.0)


def _worst(price: Price, requests: float, prompt: float, completion: float) -> float:
    num = max(requests, 1.0)
    return requests * price.worst(round(prompt / num), round(completion / num))
