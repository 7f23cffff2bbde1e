"""How many trajectories went without a reward, and why."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from stillhouse.errors import FailureBudgetExceeded


@dataclass(slots=True)
class RewardFailures:
    """Counts the trajectories of which a reward could not be computed."""

    num_scored: int = 0
    num_failed: int = 0
    """Trajectories with at least one error."""
    num_errors: Counter[str] = field(default_factory=Counter)
    """By reward."""
    first_errors: dict[str, str] = field(default_factory=dict)
    """By reward."""

    def add(self, errors: Mapping[str, str]) -> None:
        """Counts a trajectory with the errors of its rewards by name."""
        self.num_scored += 1
        self.num_failed += bool(errors)
        self.num_errors.update(errors.keys())
        for name, error in errors.items():
            self.first_errors.setdefault(name, error)

    def check(self, file: str | None, budget: float) -> None:
        """Checks that at most the share `budget` of the trajectories went without a reward.

        Args:
            file: of the rewards, for the message.
            budget: `runtime.failure_budget`.

        Raises:
            FailureBudgetExceeded: more did.
        """
        if self.num_failed <= budget * self.num_scored:
            return
        ((name, count),) = self.num_errors.most_common(1)
        raise FailureBudgetExceeded(
            f"{file}: the rewards of {self.num_failed} of {self.num_scored} trajectories could not be computed "
            f"({self.num_failed / self.num_scored:.0%}), more than runtime.failure_budget = {budget:.0%}. "
            f"{name} failed {count} times, first: {self.first_errors[name]}. Mend the function, or what it needs, and "
            "run the same command again: what was sampled is kept. Raise the budget if so many failures are normal",
            code="rewards",
        )
