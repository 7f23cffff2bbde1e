"""Counts of one collection; answers from the journal apart, as they cost nothing again."""

from collections import Counter
from dataclasses import asdict, dataclass, field

from stillhouse.inference.failures import FailureKind
from stillhouse.types import JsonObject, Turn


@dataclass(slots=True)
class RolloutStats:
    """Figures of one collection in this process."""

    num_rollouts: int = 0
    """Rollouts handed out, those that failed included."""
    num_failed: int = 0
    num_replayed_rollouts: int = 0
    """Rollouts found finished in the journal."""
    num_requests: int = 0
    """Requests sent, every try and every copy counted."""
    num_copies: int = 0
    """Requests sent a second time, as they were overdue by far (`runtime.hedge`)."""
    num_completions: int = 0
    num_replayed_completions: int = 0
    """Completions taken from the journal, those of finished trajectories included."""
    num_without_top: int = 0
    """Completions that came without the most probable tokens that were asked for."""
    num_rate_limited: int = 0
    retries: Counter[FailureKind] = field(default_factory=Counter)
    """Failed tries by kind, rate limiting apart."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    num_tool_calls: int = 0
    num_tool_errors: int = 0
    num_cut_tool_results: int = 0
    """Tool results of which the model read the beginning alone."""
    cost_usd: float | None = 0.0
    """Sum of the costs of completions; None once one is unknown."""
    possible_usd: float = 0.0
    """Most that requests can have cost whose own cost is unknown, where there is a price."""

    def count(self, turn: Turn) -> None:
        usage, cost = turn.usage, turn.cost_usd
        self.num_completions += 1
        self.prompt_tokens += usage.get("prompt_tokens", 0)
        self.completion_tokens += usage.get("completion_tokens", 0)
        self.cost_usd = None if cost is None or self.cost_usd is None else self.cost_usd + cost

    def as_facts(self) -> JsonObject:
        return {name.removeprefix("num_"): value for name, value in asdict(self).items()}
