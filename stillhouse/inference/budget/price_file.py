"""`teacher.prices_file`: LiteLLM's `model_prices_and_context_window.json`, or a table of one's own.

A row of one's own names prices as `teacher.usd_per_million_tokens` does, and an amount for each `request`. One with
tiers or with prices of long prompts is written in LiteLLM's keys, in USD a token.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from stillhouse.config.expected import expected
from stillhouse.config.rollouts import TokenKind
from stillhouse.config.yaml_text import read_yaml
from stillhouse.errors import ConfigError
from stillhouse.inference.budget.price_table import Row, read_table
from stillhouse.inference.price import Price

_OWN: Final = TypeAdapter(
    dict[TokenKind | Literal["request"], Annotated[float, Field(ge=0.0, allow_inf_nan=False, strict=True)]]
)
_FIELDS: Final = {
    "input_cost_per_token": "prompt",
    "output_cost_per_token": "completion",
    "output_cost_per_reasoning_token": "reasoning",
    "cache_read_input_token_cost": "cached_prompt",
    "input_cost_per_token_cache_hit": "cached_prompt",
    "cache_creation_input_token_cost": "cache_write",
    "input_cost_per_request": "request",
}
_COUNTED: Final = re.compile(
    rf"({'|'.join(_FIELDS)})(_above_1hr|_above_12hr)?(?:_above_(\d+)k_tokens)?"
    r"(?:_(flex|priority|batches|ultrafast|balanced|decisions))?"
)
_UPLIFTS: Final = {
    "regional_processing_uplift_multiplier_eu": "eu.api.",
    "regional_processing_uplift_multiplier_us": "us.api.",
    "regional_endpoint_uplift_multiplier": "-aiplatform.",
    "fedramp_uplift_multiplier": ".gov",
}
"""Factors on all prices, and parts of the hosts where they hold."""
_CHARGES: Final = re.compile(r".*(cost|price|pricing|multiplier|fee|surcharge|billing).*")
_NOT_MET: Final = re.compile(
    # Media and the seller's own tools, which requests have only by `rollouts.extra_body`, and answers then count.
    r".*(audio|image|video|pixel|character|text_message|page|ocr_cost|code_interpreter|file_search|computer_use"
    r"|vector_store|maps_grounding|guardrail|web_search_billing).*"
    # Discounts, without which a cost is an upper bound; the same prices in another unit.
    r"|off_peak_pricing|explicit_cache_read_input_token_cost|(input|output)_dbu_cost_per_token"
)
_HOSTS: Final = {"gemini": "generativelanguage", "vertex": "aiplatform"}
"""Parts of hosts that are not called as LiteLLM calls the provider."""


def file_price(path: Path, base_url: str, model: str) -> Price | None:
    """Return the price in a file of the model that is sold at `base_url`; None if it has none.

    Raise ConfigError if the file cannot be read, or its row of the model is wrong.
    """
    try:
        table = _read(path, changed := path.stat().st_mtime)
    except (OSError, ValueError) as error:
        raise ConfigError(f"prices_file {path}: cannot be read: {error}") from error
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise ConfigError(f"prices_file {path}: expected a mapping of models to their prices, found {str(table)[:100]}")
    host = urlsplit(base_url).hostname or ""
    table = {name: {**table.get(row.get("alias_of"), {}), **row} for name, row in table.items()}
    name = _name_in(table, host, model)
    if name is None:
        return None
    day = datetime.fromtimestamp(changed, UTC)
    source = f"{path.name} of {day:%Y-%m-%d}, {(datetime.now(UTC) - day).days} days old, {name}"
    if _is_litellm(table[name]):
        return read_litellm(table[name], name, host, source)
    try:
        own: dict[str, Any] = {str(kind): usd for kind, usd in _OWN.validate_python(table[name]).items()}
        return Price(**own, source=source)
    except ValidationError as error:
        problem = error.errors()[0]
        where = f"{name}.{problem['loc'][0]} = {problem['input']!r}"
        raise ConfigError(f"prices_file {path}: {where}: {expected(dict(problem))}") from error
    except TypeError:
        raise ConfigError(f"prices_file {path}: {name}: expected prompt and completion, found {table[name]}") from None


@lru_cache(maxsize=2)
def _read(path: Path, changed: float) -> Any:
    """Return what is in a file, which is read again once it has changed."""
    text = path.read_text(encoding="utf-8")
    return orjson.loads(text) if path.suffix == ".json" else read_yaml(text)


def read_litellm(row: Mapping[str, Any], name: str, host: str, source: str = "") -> Price | None:
    """Return the price in a row of LiteLLM's table; what is charged and not counted here is named in its gaps."""
    cells: dict[tuple[str, int], Row] = {}
    gaps: list[str] = []
    factor = Decimal(1)
    for key, value in row.items():
        if key == "tiered_pricing":
            for prices in value:
                start = int(prices.get("range", [0])[0])
                gaps += [
                    inner for inner, usd in prices.items() if not _read_key(inner, usd, cells, start) and is_gap(inner)
                ]
        elif key in _UPLIFTS:
            factor *= Decimal(repr(value)) if _UPLIFTS[key] in host else 1
        elif not _read_key(key, value, cells) and is_gap(key, name):
            gaps.append(key)
    table = {at: {field: float(usd * factor) for field, usd in prices.items()} for at, prices in sorted(cells.items())}
    return read_table(table, tuple(gaps), source, is_free=name.endswith(":free"))


def is_gap(key: str, model: str = "") -> bool:
    """Return whether a key of LiteLLM's names a charge that requests here can meet and nothing counts."""
    if key == "search_context_cost_per_query":
        # Some models search for every answer; others do where a request asks for it.
        return "search" in model or "sonar" in model
    if key in _UPLIFTS or key == "tiered_pricing" or _COUNTED.fullmatch(key) or _NOT_MET.fullmatch(key):
        return False
    return _CHARGES.fullmatch(key) is not None


def _read_key(key: str, value: Any, cells: dict[tuple[str, int], Row], above: int = 0) -> bool:
    """Add a price to the cells; return False for a key that is none."""
    found = _COUNTED.fullmatch(key)
    if found is None or type(value) not in (int, float) or value < 0:
        return False
    tier = {None: "", "batches": "batch"}.get(found[4], found[4])
    field = _FIELDS[found[1]] + ("_long" if found[2] else "")
    usd = Decimal(repr(value)) * (1 if field == "request" else 10**6)
    cells.setdefault((tier, int(found[3] or 0) * 1000 or above), {})[field] = usd
    return True


def _name_in(table: Mapping[str, Any], host: str, model: str) -> str | None:
    """Return the name under which the table has what a host sells as `model`."""
    named = [name for name in table if name == model or name.endswith(f"/{model}")]
    if sold := [name for name in named if _sells(name, table[name], host)]:
        return max(sold, key=lambda name: "/" in name)
    is_known = any(_sells("", row, host) for row in table.values())
    return model if model in table and not (is_known and _is_litellm(table[model])) else None


def _sells(name: str, row: Mapping[str, Any], host: str) -> bool:
    """Return whether a row is of the provider at a host, such as `azure` of `NAME.openai.azure.com`."""
    provider = name.partition("/")[0] if "/" in name else str(row.get("litellm_provider", ""))
    provider = re.sub(r"_ai.*|[-_]", "", provider)
    return _HOSTS.get(provider, provider or "none") in re.sub(r"[-.]", "", host)


def _is_litellm(row: Mapping[str, Any]) -> bool:
    return any("cost" in key or key == "litellm_provider" for key in row)
