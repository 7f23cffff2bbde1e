"""The prices of teachers and judges, looked up once before anything is sent.

A completion costs what its endpoint says it cost (OpenRouter's `usage.cost`). For endpoints that do not say, and for
the worst case of a request that is not sent yet, the price is the first of these that is known:

    1. teacher.usd_per_million_tokens: what the user states
    2. the endpoint's own list, GET /models, in OpenRouter's form: today's price of this very endpoint

Otherwise it is unknown, never 0. The batch endpoint halves it.
"""

import logging
import math
import threading
from contextlib import aclosing
from typing import Any, Final

import orjson

from stillhouse.config import BudgetConfig, TeacherConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.endpoint import Endpoint, Price
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.transport import open_transport

_LOG = logging.getLogger(__name__)
_TIMEOUT_S: Final = 10.0

_listed: Final[dict[tuple[str, str], Price | None]] = {}
_lock: Final = threading.Lock()


async def price_of(endpoint: Endpoint, teacher: TeacherConfig) -> Price | None:
    """Return what `endpoint` charges for its model; None if unknown."""
    price = stated_price(teacher) or await listed_price(endpoint)
    return price.half() if price is not None and teacher.batch else price


def stated_price(teacher: TeacherConfig) -> Price | None:
    return Price(**teacher.usd_per_million_tokens) if teacher.usd_per_million_tokens else None


async def listed_price(endpoint: Endpoint) -> Price | None:
    """Return the price in the endpoint's list of models, read once in a process; None where there is none.

    No failure is an error: most endpoints have no such list.
    """
    key = (endpoint.base_url, endpoint.model)
    with _lock:
        if key in _listed:
            return _listed[key]
    try:
        async with aclosing(open_transport(endpoint, timeout_s=_TIMEOUT_S)) as client:
            models = orjson.loads((await client.get("models")).content)
    except (RequestFailed, ValueError) as error:
        _LOG.info("prices: %s does not list its models: %s", endpoint.base_url, error)
        return None
    with _lock:
        _listed[key] = price = read_listed(models, endpoint.model)
    return price


def read_listed(body: Any, model: str) -> Price | None:
    """Return the price of `model` in an answer to GET /models in OpenRouter's form: texts of USD a token.

    https://openrouter.ai/docs/api-reference/list-available-models: `pricing` has `prompt`, `completion`, `request` and,
    for some models, `input_cache_read` and `internal_reasoning`. A reasoning price of 0 means that reasoning is
    charged as the completion it is part of. A negative price marks a model (a router) that has none of its own.
    """
    rows = body.get("data") if isinstance(body, dict) else None
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("id") == model and isinstance(row.get("pricing"), dict):
            prompt, completion, cached, reasoning, request = (
                _per_token(row["pricing"], name)
                for name in ("prompt", "completion", "input_cache_read", "internal_reasoning", "request")
            )
            if prompt is None or completion is None:
                return None
            return Price(
                prompt * 1e6,
                completion * 1e6,
                cached_prompt=None if cached is None else cached * 1e6,
                reasoning=reasoning * 1e6 if reasoning else None,
                request=request or 0.0,
            )
    return None


def require_prices(endpoint: Endpoint, budget: BudgetConfig) -> None:
    """Validate that the price is known where a cap in money is set; raise ConfigError if the price is unknown."""
    if budget.max_usd is not None and endpoint.price is None:
        raise ConfigError(
            f"budget.max_usd is {budget.max_usd:g}, but the price of the {endpoint.role.name.lower()} is unknown, so "
            f"the cap could not be kept. Set {endpoint.role.section}.usd_per_million_tokens, or leave budget.max_usd "
            "out and cap tokens instead"
        )


def _per_token(pricing: dict[str, Any], name: str) -> float | None:
    try:
        value = float(pricing[name])
    except (KeyError, TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value >= 0 else None
