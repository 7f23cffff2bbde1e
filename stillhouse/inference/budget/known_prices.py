"""Prices of the usual sellers, from the data that the package `genai-prices` holds; nothing is fetched."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from stillhouse.inference.budget.price_table import Row, read_table
from stillhouse.inference.price import Price

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, Tier

_FIELDS: Final = {
    "input_mtok": "prompt",
    "output_mtok": "completion",
    "output_reasoning_mtok": "reasoning",
    "cache_read_mtok": "cached_prompt",
    "cache_write_mtok": "cache_write",
    "cache_write_1h_mtok": "cache_write_long",
}
_GAPS: Final = frozenset({"output_citation_mtok"})
"""Charges for what every answer of a model can have; other units than tokens are of media and tools not asked for."""


def known_price(base_url: str, model: str) -> Price | None:
    """Return today's price of a model at a seller; None if either is unknown."""
    # A third of a second to import, with its 3 MB of prices.
    from genai_prices.data_snapshot import get_snapshot

    try:
        seller, info = get_snapshot().find_provider_model(model, None, None, base_url)
    except LookupError:
        return None
    now = datetime.now(UTC)
    # A run may last into the hours in which it costs most.
    hours = (info.get_prices(now.replace(hour=hour)) for hour in range(24))
    tiers = {"": max(hours, key=lambda prices: _row(prices, 0).get("completion", 0.0))}
    # The tiers of another seller, whose model this one resells, are not its own.
    for variant in (info.price_variants or ()) if any(info is other for other in seller.models) else ():
        tier = variant.when.get("service_tier") or variant.when.get("processing") or variant.when.get("speed")
        if tier not in (None, "default") and len(variant.when) == 1:
            tiers[str(tier)] = info.get_prices(now, variant.when)
    bounds = {tier.start for prices in tiers.values() for price in vars(prices).values() for tier in _dearer(price)}
    cells = {(tier, above): _row(prices, above) for tier, prices in tiers.items() for above in (0, *sorted(bounds))}
    source = f"genai-prices {version('genai-prices')} of {_newest()}, {seller.id}/{info.id}"
    gaps = tuple(sorted(_GAPS & vars(tiers[""]).keys()))
    return read_table(cells, gaps, source, is_free=model.endswith(":free"))


def _row(prices: "ModelPrice", above: int) -> Row:
    """Return the prices of a prompt of more tokens than `above`."""
    found = {key: price for key, price in vars(prices).items() if price is not None}
    row: Row = {}
    for key in _FIELDS.keys() & found.keys():
        dearer = [tier.price for tier in _dearer(found[key]) if above and tier.start <= above]
        row[_FIELDS[key]] = float([getattr(found[key], "base", found[key]), *dearer][-1])
    if "requests_kcount" in found:
        row["request"] = float(found["requests_kcount"] / 1000)
    return row


def _dearer(price: Any) -> Sequence["Tier"]:
    return getattr(price, "tiers", ())


@cache
def _newest() -> date:
    """Return the last day on which a tier of the package got its price: its data are at least as new."""
    from genai_prices.data_snapshot import get_snapshot

    models = (info for seller in get_snapshot().providers for info in seller.models)
    constraints = (variant.constraint for info in models for variant in info.price_variants or ())
    starts = (getattr(constraint, "start_date", date.min) for constraint in constraints)
    return max(start for start in starts if start <= datetime.now(UTC).date())
