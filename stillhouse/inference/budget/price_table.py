"""Rows of a price table, by service tier and by length of the prompt, put together to a `Price`.

A table seldom has every cell. One that is missing is charged by another that is at least as high, such as the standard
price in a cheaper tier; where none is known to be, the price has a gap.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from stillhouse.inference.price import Price

Row = dict[str, Any]
"""USD per million tokens by field of `Price`; `request` in USD."""
Cells = Mapping[tuple[str, int], Row]
"""Rows by tier and by the prompt tokens above which they hold; `("", 0)` is the standard."""
_WHOLE: Final = {
    "cached_prompt": "prompt",
    "cache_write": "prompt",
    "cache_write_long": "prompt",
    "reasoning": "completion",
}
"""Fields, and what they are a part of."""


def read_table(cells: Cells, gaps: tuple[str, ...], source: str, *, is_free: bool = False) -> Price | None:
    """Return the price in a table; None if it has no standard price.

    A price of 0 is none, unless the model is known to be free: tables write it for unknown.
    """
    base = cells.get(("", 0), {})
    if not {"prompt", "completion"} <= base.keys() or not (is_free or base["prompt"] or base["completion"]):
        return None
    tiers = {tier: _price(cells, tier) for tier, _ in cells if tier}
    standard = _price(cells, "")
    return replace(standard, tiers=tiers, gaps=gaps + standard.gaps, source=source)


def _price(cells: Cells, tier: str) -> Price:
    gaps: list[str] = []
    bounds = sorted({above for name, above in cells if name in ("", tier)} - {0})
    first, *longer = (Price(**_filled(cells, tier, above, gaps)) for above in (0, *bounds))
    return replace(first, above=dict(zip(bounds, longer, strict=True)), gaps=tuple(gaps))


def _filled(cells: Cells, tier: str, above: int, gaps: list[str]) -> Row:
    """Return a row with the cells that it lacks; add those to the gaps that no other is known to be as high as."""
    found, base = cells.get((tier, above), {}), cells[("", 0)]
    if not tier and not above:
        return found
    rest = _filled(cells, "", above if tier else 0, [])
    is_cheaper = tier and all(usd <= base.get(name, 0.0) for name, usd in cells.get((tier, 0), {}).items())
    row = dict(found)
    for name in rest.keys() - found.keys():
        whole = _WHOLE.get(name)
        if whole and (rest[name] == rest[whole] or (name == "cached_prompt" and not is_cheaper)):
            continue
        row[name] = rest[name]
        if not is_cheaper and name != "request":
            gaps.append(name + (f" in the tier {tier}" if tier else "") + (f" above {above} tokens" if above else ""))
    return row
