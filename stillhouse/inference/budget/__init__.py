"""Hard caps on what a run spends, what it will spend in all, and the prices both are reckoned with."""

from stillhouse.inference.budget.budget import Budget, forget_budgets, remaining_budget, shared_budget
from stillhouse.inference.budget.prices import price_of, require_prices, stated_price
from stillhouse.inference.budget.spend import NOTHING, REFUSED, Spend, spend_of

__all__ = [
    "NOTHING",
    "REFUSED",
    "Budget",
    "Spend",
    "forget_budgets",
    "price_of",
    "remaining_budget",
    "require_prices",
    "shared_budget",
    "spend_of",
    "stated_price",
]
