"""The prices of teachers and judges, looked up once before anything is sent.

A completion costs what its endpoint says it cost (OpenRouter's `usage.cost`). For endpoints that do not say, and for
the worst case of a request that is not sent yet, the price is the first of these that is known:

    1. teacher.usd_per_million_tokens: what the user states
    2. teacher.prices_file: LiteLLM's table, or one of the user's own
    3. the endpoint's own list, GET /models, in OpenRouter's form: today's price of this very endpoint
    4. the package genai-prices, by the endpoint's address

Otherwise it is unknown, never 0.
"""

import logging
import math
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

from stillhouse.config import BudgetConfig, TeacherConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.budget.known_prices import known_price
from stillhouse.inference.budget.price_file import file_price
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.price import Price
from stillhouse.inference.transport import open_transport

_LOG = logging.getLogger(__name__)
_TIMEOUT_S: Final = 10.0

_LISTED: Final = {
    "prompt": "prompt",
    "completion": "completion",
    "cached_prompt": "input_cache_read",
    "cache_write": "input_cache_write",
    "reasoning": "internal_reasoning",
    "request": "request",
}
"""OpenRouter's names of prices."""
_WHOLE: Final = frozenset({"prompt", "completion"})

_listed: Final[dict[tuple[str, str], Price | None]] = {}


async def price_of(endpoint: Endpoint, teacher: TeacherConfig) -> Price | None:
    """Return what `endpoint` charges for its model in the tier, or by the batch, that is asked for; None if unknown.

    Raise ConfigError if the file of prices cannot be read.
    """
    price = stated_price(teacher)
    if price is None and teacher.prices_file is not None:
        price = file_price(Path(teacher.prices_file), endpoint.base_url, endpoint.model)
        if price is None:
            _LOG.warning("%s has no price of %s at %s", teacher.prices_file, endpoint.model, endpoint.base_url)
    price = price or await listed_price(endpoint) or known_price(endpoint.base_url, endpoint.model)
    if price is not None:
        price = price.batch() if teacher.batch else replace(price, asked=teacher.service_tier)
    cost = ("price unknown", "no source has it") if price is None else (str(price), price.source)
    _say(endpoint.role.name.lower(), endpoint.model, *cost)
    return price


@cache
def _say(role: str, model: str, price: str, source: str) -> None:
    """Log, once in a process, what a model costs and how that is known."""
    _LOG.info("%s %s: %s (%s)", role, model, price, source)


def stated_price(teacher: TeacherConfig) -> Price | None:
    stated: dict[str, Any] = dict(teacher.usd_per_million_tokens.items())
    return Price(**stated, source="usd_per_million_tokens of the config") if stated else None


async def listed_price(endpoint: Endpoint) -> Price | None:
    """Return the price in the endpoint's list of models, read once in a process; None where there is none.

    No failure is an error: most endpoints have no such list.
    """
    key = (endpoint.base_url, endpoint.model)
    if key in _listed:
        return _listed[key]
    try:
        async with aclosing(open_transport(endpoint, timeout_s=_TIMEOUT_S)) as client:
            models = orjson.loads((await client.get("models")).content)
    except (RequestFailed, ValueError) as error:
        _LOG.info("prices: %s does not list its models: %s", endpoint.base_url, error)
        return None
    _listed[key] = read_listed(models, endpoint.model, f"{endpoint.base_url}/models as of now")
    return _listed[key]


def read_listed(body: Any, model: str, source: str = "") -> Price | None:
    """Return the price of `model` in an answer to GET /models in OpenRouter's form: texts of USD a token.

    https://openrouter.ai/docs/api-reference/list-available-models: `pricing` has `prompt`, `completion`, `request` and,
    for some models, `input_cache_read`, `input_cache_write` and `internal_reasoning`. A reasoning price of 0 means that
    reasoning is charged as the completion it is part of. A negative price marks a model (a router) that has none of its
    own.
    """
    rows = body.get("data") if isinstance(body, dict) else None
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("id") == model and isinstance(row.get("pricing"), dict):
            told = {field: _per_million(row["pricing"].get(name)) for field, name in _LISTED.items()}
            usd: dict[str, Any] = {
                field: price for field, price in told.items() if price or (price == 0.0 and field in _WHOLE)
            }
            usd["request"] = usd.get("request", 0.0) / 1e6
            return Price(**usd, source=source) if usd.keys() >= _WHOLE else None
    return None


def require_prices(endpoint: Endpoint, budget: BudgetConfig) -> None:
    """Check that a cap in money can be kept; raise ConfigError if a price is unknown. Without a cap, warn of gaps."""
    price, role = endpoint.price, endpoint.role
    if price is not None and not price.unknown:
        return
    unknown = "its price" if price is None else f"{', '.join(price.unknown)}, by {price.source},"
    if budget.max_usd is not None:
        raise ConfigError(
            f"budget.max_usd is {budget.max_usd:g}, but of {endpoint.model} {unknown} is unknown, so the cap could not "
            f"be kept. Set {role.section}.usd_per_million_tokens or {role.section}.service_tier, or leave "
            "budget.max_usd out and cap tokens instead"
        )
    if price is not None:
        _LOG.warning("of the %s %s %s is unknown: costs may be too low", role.name.lower(), endpoint.model, unknown)


def _per_million(written: Any) -> float | None:
    try:
        value = float(Decimal(str(written)) * 10**6)
    except InvalidOperation:
        return None
    return value if math.isfinite(value) and value >= 0 else None
