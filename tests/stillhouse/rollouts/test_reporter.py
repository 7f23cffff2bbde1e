import asyncio
from dataclasses import dataclass

import pytest

from stillhouse.inference.rate_limit import Caps, Controller, RateControl, RequestSize
from stillhouse.inference.stats import RolloutStats
from stillhouse.progress.state import RolloutProgress
from stillhouse.rollouts.reporter import Reporter


@dataclass
class Clocks:
    """The time, and the CPU that this process has used, in seconds."""

    wall_s: float = 0.0
    cpu_s: float = 50.0


def reasons(shares: list[float], *, in_flight: int) -> list[str]:
    """Return the reason shown after each second in which the process used such a share of a core."""
    clocks, controller, shown = Clocks(), Controller(RateControl(4, Caps(4))), list[RolloutProgress]()
    reporter = Reporter(
        shown.append,
        RolloutStats(),
        controller,
        total=None,
        is_local=False,
        clock=lambda: clocks.wall_s,
        cpu_clock=lambda: clocks.cpu_s,
    )

    async def main() -> list[str]:
        for _ in range(in_flight):
            await controller.acquire(RequestSize(1, max_tokens=1), continuing=False)
        reporter.report()
        seen = []
        for share in shares:
            clocks.wall_s += 1.0
            clocks.cpu_s += share
            reporter.report()
            seen.append(shown[-1].limit_reason)
        return seen

    return asyncio.run(main())


def test_a_process_that_keeps_a_core_busy_is_named_as_the_bottleneck_until_it_is_none() -> None:
    busy, *_, calm = reasons([0.97, *[0.2] * 12], in_flight=2)
    assert "this process is the bottleneck: it keeps 97% of a core busy" in busy
    assert calm
    assert busy.startswith(calm)
    assert "bottleneck" not in calm


@pytest.mark.parametrize(("share", "in_flight"), [(0.85, 2), (1.0, 0)], ids=["waits for answers", "asks nothing"])
def test_the_endpoint_sets_the_pace_of_a_process_that_waits_for_it(share: float, in_flight: int) -> None:
    assert "bottleneck" not in reasons([share] * 3, in_flight=in_flight)[-1]
