"""`shared_budget`: the budget of a run, found by its tasks, which are handed nothing but JSON."""

import threading
from typing import Final

from stillhouse.config import BudgetConfig
from stillhouse.inference.budget.budget import Budget
from stillhouse.inference.endpoint import Price

_shared: Final[dict[str, dict[str, Budget]]] = {}
_lock: Final = threading.Lock()


def shared_budget(run_id: str, part: str, config: BudgetConfig, price: Price | None) -> Budget:
    """The process's budget of a run, as one of its collections sees it.

    A part that is asked for again is one that was broken off and runs again: what the journal replays to it is not
    counted twice.

    Args:
        run_id: of the flow run.
        part: names the collection within the run; the same at each of its attempts.
        config: the caps; those of the run's first part hold.
        price: of the model this part asks; None when it is unknown.
    """
    with _lock:
        parts = _shared.setdefault(run_id, {})
        budget = parts.get(part)
        if budget is not None:
            budget.start_again()
        elif parts:
            budget = parts[part] = next(iter(parts.values())).part(price)
        else:
            budget = parts[part] = Budget(config, price)
        return budget


def forget_budgets(run_id: str) -> None:
    """Lets go of a run's budget; call it when the flow run has ended."""
    with _lock:
        _shared.pop(run_id, None)
