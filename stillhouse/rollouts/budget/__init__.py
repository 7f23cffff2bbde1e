"""Hard caps on what a run spends, what it will spend in all, and the prices both are reckoned with."""

from stillhouse.rollouts.budget.budget import Budget, BudgetSnapshot, Reservation
from stillhouse.rollouts.budget.prices import price_of, require_prices, stated_price
from stillhouse.rollouts.budget.shared import forget_budgets, shared_budget
from stillhouse.rollouts.budget.spend import NOTHING, REFUSED, Spend, spend_of

__all__ = [
    "NOTHING",
    "REFUSED",
    "Budget",
    "BudgetSnapshot",
    "Reservation",
    "Spend",
    "forget_budgets",
    "price_of",
    "require_prices",
    "shared_budget",
    "spend_of",
    "stated_price",
]
