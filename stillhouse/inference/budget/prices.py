"""The prices of teachers and judges, looked up once before anything is sent.

A completion costs what its endpoint says it cost (OpenRouter's `usage.cost`). For endpoints that do not say, and for
the worst case of a request that is not sent yet, the price is the first of these that is known:

    1. teacher.usd_per_million_prompt_tokens and teacher.usd_per_million_completion_tokens: what the user states
    2. the endpoint's own list, GET /models, in OpenRouter's form: today's price of this very endpoint
    3. teacher.prices_file: a table of many models

Otherwise it is unknown, never 0. The batch endpoint halves it.
"""

import logging
import math
import threading
from contextlib import aclosing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from stillhouse.config import BudgetConfig, ModelRole, RolloutsConfig, TeacherConfig
from stillhouse.config.expected import expected
from stillhouse.errors import ConfigError
from stillhouse.inference.endpoint import Endpoint, Price
from stillhouse.inference.failures import RequestFailed

_LOG = logging.getLogger(__name__)
_TIMEOUT_S: Final = 10.0

_listed: Final[dict[tuple[str, str], Price | None]] = {}
_lock: Final = threading.Lock()


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: float = Field(ge=0.0)
    completion: float = Field(ge=0.0)
    cached_prompt: float | None = Field(default=None, ge=0.0)


_TABLE: Final = TypeAdapter(dict[str, _Row])


def price_in_file(path: str, model: str, role: ModelRole = ModelRole.TEACHER) -> Price | None:
    """The price of `model` in a file of prices; None when no line of it is about that model.

    The file is YAML, a model's name or a pattern with USD per million tokens:

        gpt-5-mini:
          prompt: 0.25
          completion: 2.00
          cached_prompt: 0.025    # optional; else as prompt
        "qwen/*":                 # * any characters, ? any one, [ab] one of these
          prompt: 0.10
          completion: 0.40

    A name that is written out goes before any pattern; of several patterns the first in the file holds.

    Raises:
        ConfigError: the file is not there, is not YAML, or does not have the form shown above.
    """
    field = f"{role.section}.prices_file"
    try:
        rows = _TABLE.validate_python(yaml.safe_load(Path(path).read_bytes()))
    except OSError as error:
        raise ConfigError(
            f"{field}: {path} cannot be read ({error.strerror}). Correct the path, or leave the field out"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{field}: {path} is not valid YAML: {error}. Correct the file") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(
            f"{field}: {path}: {place}: {expected(first)}, found {first['input']!r}. Expected for each model name or "
            "pattern a mapping of prompt, completion and, if it differs, cached_prompt: numbers in USD per million "
            "tokens, from 0"
        ) from error
    row = rows.get(model) or next((row for name, row in rows.items() if fnmatchcase(model, name)), None)
    return None if row is None else Price(row.prompt, row.completion, cached_prompt=row.cached_prompt)


async def price_of(endpoint: Endpoint, teacher: TeacherConfig) -> Price | None:
    """Return what `endpoint` charges for its model; None if unknown.

    Raises:
        ConfigError: `teacher.prices_file` cannot be read.
    """
    # A mistake in the file is reported at once, not on the day the endpoint stops listing its prices.
    file = teacher.prices_file
    in_file = None if file is None else price_in_file(file, endpoint.model, endpoint.role)
    price = stated_price(teacher) or await listed_price(endpoint) or in_file
    return price.half() if price is not None and teacher.batch else price


def stated_price(teacher: TeacherConfig) -> Price | None:
    prompt, completion = teacher.usd_per_million_prompt_tokens, teacher.usd_per_million_completion_tokens
    return None if prompt is None or completion is None else Price(prompt, completion)


async def listed_price(endpoint: Endpoint) -> Price | None:
    """The price in the endpoint's list of models, read once in a process; None where there is none.

    No failure is an error: most endpoints have no such list.
    """
    key = (endpoint.base_url, endpoint.model)
    with _lock:
        if key in _listed:
            return _listed[key]
    # aiohttp takes a third of a second to import, which commands without requests should not wait for.
    from stillhouse.inference.http_client import HttpClient

    try:
        async with aclosing(HttpClient(endpoint, timeout_s=_TIMEOUT_S)) as client:
            models = orjson.loads((await client.get("models")).content)
    except (RequestFailed, ValueError) as error:
        _LOG.info("prices: %s does not list its models: %s", endpoint.base_url, error)
        return None
    with _lock:
        _listed[key] = price = read_listed(models, endpoint.model)
    return price


def read_listed(body: Any, model: str) -> Price | None:
    """The price of `model` in an answer to GET /models in OpenRouter's form: texts of USD a token.

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


def require_prices(endpoint: Endpoint, budget: BudgetConfig, rollouts: RolloutsConfig) -> None:
    """Validates that the price is known where a cap in money is set.

    Raises:
        ConfigError: the price is unknown.
    """
    role, section = endpoint.role.name.lower(), endpoint.role.section
    for field, cap in (("budget.max_usd", budget.max_usd), ("rollouts.max_rollout_usd", rollouts.max_rollout_usd)):
        if cap is not None and endpoint.price is None:
            raise ConfigError(
                f"{field} is {cap:g}, but the price of the {role} is unknown, so the cap could not be kept. Set "
                f"{section}.usd_per_million_prompt_tokens and {section}.usd_per_million_completion_tokens, or name a "
                f"file of prices in {section}.prices_file; or leave {field} out and cap tokens instead"
            )


def _per_token(pricing: dict[str, Any], name: str) -> float | None:
    try:
        value = float(pricing[name])
    except (KeyError, TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value >= 0 else None
