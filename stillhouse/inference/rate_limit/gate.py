"""`Gate`: nothing is sent before the time a provider asked for.

Only the first refusal of an episode shuts it, so that late refusals cannot prolong it, and never for more than a
minute: then a single request tries whether it may open, so that no server can freeze a run.
"""

import math
from dataclasses import dataclass
from typing import Final

MAX_GATE_S: Final = 60.0


@dataclass(slots=True)
class Gate:
    """Shut until a time; after one of a minute, half open until a request has passed."""

    until: float = -math.inf
    half_open: bool = False
    """Only one request at a time may pass, until one is answered."""
    probing: bool = False
    """That request is in flight."""

    def shut(self, wait_s: float, now: float) -> None:
        """Shuts for so many seconds, a minute at most."""
        self.until = max(self.until, now + min(wait_s, MAX_GATE_S))
        self.half_open = self.half_open or wait_s > MAX_GATE_S

    def wait_s(self, now: float) -> float:
        """Seconds until it opens; 0 or less when it is open."""
        return self.until - now

    def settle_probe(self, *, answered: bool) -> None:
        """The request that was let through alone has ended."""
        self.probing = False
        if answered:
            self.half_open = False
