"""A forecast in words: its table, its total, and how far the budget goes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from stillhouse.config import BudgetConfig
from stillhouse.forecast.line import Line
from stillhouse.forecast.ranges import Range, exactly
from stillhouse.progress.text import dollars, short

COLUMNS: Final = ("stage", "requests", "prompt\ntokens", "completion\ntokens", "cost", "at most")


def rows(lines: Sequence[Line]) -> list[list[str]]:
    """Return the rows of the table, under `COLUMNS`."""
    table = []
    for line in lines:
        figures = (line.requests, line.prompt_tokens, line.completion_tokens)
        cost = "unknown" if line.usd is None else _text(line.usd, dollars, "\n")
        most = "unknown" if line.worst_usd is None else dollars(line.worst_usd)
        cells = [f"{line.stage}\n{line.model}", *(_text(figure, short, "\n") for figure in figures)]
        table.append(cells + (["nothing", "nothing"] if line.is_local else [cost, most]))
    return table


def summary(lines: Sequence[Line], budget: BudgetConfig) -> Iterator[str]:
    """Yield what all lines come to and what that leaves out, then how much of the run each cap of the budget allows."""
    requests, tokens = (sum((getattr(line, name) for line in lines), exactly(0.0)) for name in ("requests", "tokens"))
    usd = sum((line.usd for line in lines if line.usd is not None), exactly(0.0))
    cost = f"{_text(usd, dollars)} in all" if all(line.usd for line in lines) or usd.high > 0 else "unknown cost"
    yield f"{_text(requests, short)} requests, {_text(tokens, short)} tokens, {cost}."
    if unknown := " and ".join(line.stage for line in lines if line.usd is None):
        yield f"The price of {unknown} is unknown and left out."
    refused = " and ".join(line.stage for line in lines if line.usd is None and line.items != "sequences")
    if refused and budget.max_usd is not None:
        yield f"With budget.max_usd the run will stop before {refused}: give a price, usd_per_million_tokens."
    if local := " and ".join(line.stage for line in lines if line.is_local):
        yield f"{local.capitalize()} cost nothing, as this machine serves the model."
    for name, figure, write in (("usd", "usd", dollars), ("tokens", "tokens", short), ("requests", "requests", short)):
        cap = getattr(budget, f"max_{name}")
        asked = [line for line in lines if line.count > 0 and not line.is_local]
        known = [(line, amount) for line in asked if (amount := getattr(line, figure)) is not None]
        if cap is not None and known:
            # Answers of the journal count against the cap when they are used.
            whole = [(line, amount * exactly(1.0 + line.num_paid / line.count)) for line, amount in known]
            yield f"The cap of {write(cap)} (budget.max_{name}) {_reach(whole, cap)}."


def _reach(amounts: Sequence[tuple[Line, Range]], cap: float) -> str:
    first = _end([(line, amount.high) for line, amount in amounts], cap)
    if first is None:
        return "holds all of it"
    is_measured = [amount.likely is not None for _, amount in amounts]
    measured = [*is_measured, False].index(False)
    likely = _end([(line, amount.likely or 0.0) for line, amount in amounts[:measured]], cap)
    if likely is not None:
        return f"ends after about {likely}, at the earliest after {first}"
    if measured == len(amounts):
        return f"likely holds all of it; at the earliest it ends after {first}"
    last = _end([(line, amount.low) for line, amount in amounts], cap)
    return f"ends after {first} at the earliest, {'at the latest after ' + last if last else 'or holds all of it'}"


def _end(amounts: Sequence[tuple[Line, float]], left: float) -> str | None:
    """Return where a cap ends the run; None if it holds all of the amounts."""
    for line, amount in amounts:
        if amount > left:
            num = line.count + line.num_paid
            # Two digits, as no more are known.
            return f"{float(f'{num * left / amount:.2g}'):,.0f} of {num:,.0f} {line.items}"
        left -= amount
    return None


def _text(figure: Range, write: Callable[[float], str], separator: str = " ") -> str:
    low, high = write(figure.low), write(figure.high)
    spread = f"{low} to{separator}{high}"
    if figure.likely is None:
        return spread
    return low if low == high else f"{write(figure.likely)}{separator}({spread})"
