import httpx
import pytest

from benchmarks.rollouts.process import running
from tests.provider.answers import Service
from tests.provider.limits import Limits, Step


def ask(url: str, text: str) -> None:
    httpx.post(f"{url}/chat/completions", json={"messages": [{"role": "user", "content": text}]}, timeout=10)


def test_a_provider_in_a_process_counts_what_it_served_and_ends_with_its_starter() -> None:
    steps = (Step(at_s=0, limits=Limits(requests_per_minute=0.001, burst_requests=3)),)
    with running(Service(latency_s=0.01, steps=steps)) as provider:
        for index in range(4):
            ask(provider.url, f"[case-{index:06d}]")
        ask(provider.url, "[case-000000]")
        stats, ledger = provider.stats(), provider.ledger()
        assert httpx.get(f"{provider.url}/models").json()["data"][0]["id"] == "simulated-1"
    assert (stats.num_requests, stats.num_billed, stats.num_rejected, stats.in_flight) == (5, 3, 2, 0)
    assert (ledger.num_billed, ledger.num_distinct_billed, ledger.num_refused) == (3, 3, 2)
    assert ledger.by_status == {"200": 3, "429": 2}
    assert ledger.refused_by == {"requests": 2}
    assert sum(second.served for second in ledger.seconds) == 3
    assert sum(second.tokens for second in ledger.seconds) == ledger.billed_tokens > 0
    assert sum(second.busy_s for second in ledger.seconds) >= 0.03
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{provider.url}/stats")
