"""The words for a budget that is spent."""

from collections.abc import Iterator

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached
from stillhouse.inference.budget.spend import Spend

_AGAIN = "and run the same command again: what was paid for is used again"


def spent_error(config: BudgetConfig, counted: Spend, possibly_billed: Spend, worst: Spend) -> BudgetReached:
    """The error where one more request could pass a cap.

    Args:
        config: the caps.
        counted: against them.
        possibly_billed: the part of it that is an upper bound.
        worst: what the request may cost.
    """
    passed = list(_passed(config, counted, worst))
    message = f"the budget is spent: {'; '.join(told for _, told in passed)}. "
    if possibly_billed.requests:
        money = f" and {possibly_billed.usd:.4g} USD" if possibly_billed.usd else ""
        message += (
            f"(Of that, {possibly_billed.tokens} tokens{money} are the worst case of {possibly_billed.requests} "
            "requests that did not say what they cost.) "
        )
    return BudgetReached(message + f"Raise {' and '.join(field for field, _ in passed)} {_AGAIN}")


def _passed(config: BudgetConfig, counted: Spend, worst: Spend) -> Iterator[tuple[str, str]]:
    """The field and the words for each cap that the request could pass."""
    for name, unit in (("requests", "requests"), ("tokens", "tokens"), ("usd", "USD")):
        cap, spent, more = getattr(config, f"max_{name}"), getattr(counted, name) or 0, getattr(worst, name) or 0
        if cap is not None and spent + more > cap:
            over = f" ({spent - cap:.6g} over, by answers that cost more than foreseen)" if spent > cap else ""
            told = f"{spent:.6g} of {cap:.6g} {unit} are spent{over}, and one more request may take {more:.6g}"
            yield f"budget.max_{name}", told


def time_error(hours: float, cap: float) -> BudgetReached:
    """The error where the time is up."""
    return BudgetReached(
        f"the budget is spent: rollouts have taken {hours:.3g} of {cap:g} hours. Raise budget.max_hours {_AGAIN}"
    )
