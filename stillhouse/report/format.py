"""Numbers as the report writes them; an unknown one is a dash, never a zero."""

import math

DASH = "\u2013"


def count(value: float | None) -> str:
    """Return `12,345`."""
    return DASH if value is None else f"{value:,.0f}"


def decimal(value: float | None, places: int = 1) -> str:
    """Return `12.3`."""
    return DASH if value is None else f"{value:,.{places}f}"


def percent(share: float | None) -> str:
    """Return a share as `12.3 %`."""
    return DASH if share is None else f"{100 * share:.1f}\u202f%"


def interval(low: float | None, high: float | None) -> str:
    """Return two shares as `12.3 - 45.6 %`, with an en dash."""
    if low is None or high is None:
        return DASH
    return f"{100 * low:.1f}{DASH}{100 * high:.1f}\u202f%"


def seconds(value: float | None) -> str:
    """Return `8.4 s`, `3 min 05 s`, `2 h 07 min`."""
    if value is None:
        return DASH
    if value < 60:
        return f"{value:.1f} s"
    total = round(value)
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def dollars(value: float | None) -> str:
    """Return `$1.20`; below a dollar four places, or as many as three digits take."""
    if value is None:
        return DASH
    if value >= 1 or value == 0:
        return f"${value:,.2f}"
    return f"${value:.{max(4, 2 - math.floor(math.log10(value)))}f}"


def spend(cost: float | None, estimated: float | None, possible: float | None) -> str:
    """Return `$1.20, $0.4000 of it by price`, and what requests without a known cost may have cost on top."""
    by_price = ""
    if cost and estimated:
        by_price = f", {'all' if math.isclose(estimated, cost) else dollars(estimated)} of it by price"
    return dollars(cost) + by_price + (f", up to {dollars(possible)} more untold" if possible else "")


def metric(value: float) -> str:
    """Return four significant digits, whole numbers whole."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:.4g}"
