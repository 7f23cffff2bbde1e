"""The record of requests that came, were refused and were billed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stillhouse.testing.limits import Scope


@dataclass(slots=True)
class Entry:
    digest: str
    arrived_at: float
    """`time.time()`, comparable between processes of one machine."""
    status: int | None = None
    answered_at: float | None = None
    """When the last byte was handed over; None for what was never answered."""
    billed: bool = False
    """True if tokens were sampled: an answer with status 200, however it got through."""
    refused: Scope | None = None
    """The limit that it met."""
    tokens: int = 0


def billed(entries: Sequence[Entry]) -> Counter[str]:
    """Return how often each distinct request was billed."""
    return Counter(entry.digest for entry in entries if entry.billed)
