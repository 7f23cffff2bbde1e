"""Which requests came, were refused and were billed, and when."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stillhouse.testing.limits import Scope


@dataclass(slots=True)
class Entry:
    """One line of the ledger."""

    digest: str
    arrived_at: float
    """`time.time()`, comparable between processes of one machine."""
    status: int | None = None
    answered_at: float | None = None
    """When the last byte was handed over; None for what was never answered."""
    billed: bool = False
    """Whether tokens were sampled: an answer with status 200, however it got through."""
    refused: Scope | None = None
    """The limit that it met."""
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Second:
    """What happened in one second."""

    served: int = 0
    """Requests that met no limit."""
    refused: int = 0
    tokens: int = 0
    """Of requests that met no limit."""
    busy_s: float = 0.0
    """Seconds of service given, so the mean number of requests in flight."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The ledger in figures."""

    num_requests: int
    num_refused: int
    num_billed: int
    num_distinct_billed: int
    peak_in_flight: int
    first_arrival: float | None
    last_answer: float | None
    """Of what was billed."""
    billed_tokens: int
    by_status: dict[str, int]
    """Answers by status; `none` for what was never answered."""
    refused_by: dict[str, int]
    seconds: list[Second] = field(default_factory=list)
    """From the first arrival on."""

    def as_json(self) -> dict[str, Any]:
        """As it goes over the wire."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Summary":
        """What came over the wire."""
        return cls(**{**stored, "seconds": [Second(**second) for second in stored["seconds"]]})


def billed(entries: Sequence[Entry]) -> Counter[str]:
    """How often each distinct request was billed."""
    return Counter(entry.digest for entry in entries if entry.billed)


def summarize(entries: Sequence[Entry], peak_in_flight: int) -> Summary:
    """The ledger in figures."""
    paid = [entry for entry in entries if entry.billed]
    return Summary(
        num_requests=len(entries),
        num_refused=sum(entry.refused is not None for entry in entries),
        num_billed=len(paid),
        num_distinct_billed=len(billed(entries)),
        peak_in_flight=peak_in_flight,
        first_arrival=entries[0].arrived_at if entries else None,
        last_answer=max((entry.answered_at for entry in paid if entry.answered_at is not None), default=None),
        billed_tokens=sum(entry.tokens for entry in paid),
        by_status=dict(Counter("none" if entry.status is None else str(entry.status) for entry in entries)),
        refused_by=dict(Counter(entry.refused for entry in entries if entry.refused is not None)),
        seconds=_by_second(entries),
    )


def _by_second(entries: Sequence[Entry]) -> list[Second]:
    if not entries:
        return []
    start = entries[0].arrived_at
    end = max(max(entry.arrived_at, entry.answered_at or 0.0) for entry in entries)
    served, refused, tokens, busy_s = ([0.0] * (int(end - start) + 1) for _ in range(4))
    for entry in entries:
        second = int(entry.arrived_at - start)
        if entry.refused is not None:
            refused[second] += 1
            continue
        served[second] += 1
        tokens[second] += entry.tokens
        _add_busy(busy_s, entry.arrived_at - start, (entry.answered_at or end) - start)
    rows = zip(served, refused, tokens, busy_s, strict=True)
    return [Second(int(row[0]), int(row[1]), int(row[2]), row[3]) for row in rows]


def _add_busy(busy_s: list[float], begin: float, end: float) -> None:
    for second in range(int(begin), min(int(end), len(busy_s) - 1) + 1):
        busy_s[second] += min(end, second + 1) - max(begin, second)
