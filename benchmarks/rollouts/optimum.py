"""The best that any client could do: an event simulation that knows the limits and is never refused.

Work-conserving, with the service's own limits (`tests.provider.limits`), latencies and faults; a fault costs what
it costs at the provider, a silent one the deadline of the scenario, and the request is made again at once. Kills cost
nothing here. What counts is the time from the first request to the last answer.
"""

import heapq
import math
import random
from collections import deque

from benchmarks.rollouts.scenarios import Scenario
from tests.provider.answers import latency_s
from tests.provider.limits import Limiter, Size

_CHARACTERS_PER_TOKEN = 4
_REQUEST_CHARACTERS = 170
"""Of a request's JSON without padding."""
_TOOL_TIMEOUT_S = 5.0
_QUICK_FAULTS = {"error_body", "rate_body"}


def optimum_s(scenario: Scenario, seed: int = 0) -> float:
    """Seconds that the scenario takes at best."""
    service, rng = scenario.service, random.Random(seed)
    limiter = Limiter(service.steps)
    ready = deque([scenario.num_turns] * scenario.num_rows)
    ends: list[tuple[float, bool, int]] = []
    now, last, in_flight, num_started = 0.0, 0.0, 0, 0
    while ready or ends:
        wait_s = math.inf
        while ready and in_flight < scenario.concurrency:
            size = _size(scenario, num_started)
            refusal = limiter.refusal(now, in_flight) or limiter.size_refusal(now, size)
            if refusal is not None:
                wait_s = math.inf if refusal.scope == "concurrency" else refusal.wait_s
                break
            limiter.take(now, size)
            turns = ready.popleft()
            num_started, in_flight = num_started + 1, in_flight + 1
            taken_s, answered = _attempt(scenario, rng)
            heapq.heappush(ends, (now + taken_s, True, turns - answered))
        if not ready and not ends:
            break
        now = min(ends[0][0] if ends else math.inf, now + wait_s, now + limiter.next_step_s(now))
        while ends and ends[0][0] <= now:
            at, served, turns = heapq.heappop(ends)
            in_flight -= served
            last = max(last, at)
            if turns and served and scenario.tool_s:
                heapq.heappush(ends, (at + scenario.tool_s, False, turns))
            elif turns:
                ready.appendleft(turns)
    hanging_s = (_TOOL_TIMEOUT_S - scenario.tool_s) if scenario.hanging_every else 0.0
    return last + hanging_s


def _size(scenario: Scenario, num_started: int) -> Size:
    prompt = (_REQUEST_CHARACTERS + scenario.padding) // _CHARACTERS_PER_TOKEN
    service = scenario.service
    long = service.long_from is not None and num_started >= service.long_from
    return Size(prompt + service.completion_tokens * (10 if long else 1) + 1, prompt + scenario.max_tokens)


def _attempt(scenario: Scenario, rng: random.Random) -> tuple[float, bool]:
    """Seconds of one request, and whether it is answered."""
    service = scenario.service
    taken_s, drawn = latency_s(service, rng.uniform(1e-9, 1 - 1e-9)), rng.random()
    for fault, share in service.faults.items():
        drawn -= share
        if drawn < 0:
            if fault == "silent":
                return scenario.stall_s, False
            return (0.0 if fault in _QUICK_FAULTS else taken_s), False
    return taken_s, True
