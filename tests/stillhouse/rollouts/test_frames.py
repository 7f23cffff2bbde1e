import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import stillhouse
from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.inference import Endpoint, Journal
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.transport import HttpAnswer
from stillhouse.rollouts import EverySample, RolloutCollector
from stillhouse.tools import Toolbox
from stillhouse.types import Prompt
from tests.provider import ReceivedRequest, Reply, SimulatedProvider

MOST = 15
ROOT = str(Path(stillhouse.__file__).parent)


def frames() -> list[str]:
    """Return the functions of the product that are under way, those that await included."""
    frame, names = sys._getframe(1), []
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.startswith(ROOT):
            names.append(frame.f_code.co_qualname)
    return names


class WatchedClient(HttpClient):
    seen: list[list[str]]

    async def _answered(self, exchange: Any) -> HttpAnswer:
        self.seen.append([f"{HttpClient.__name__}._answered", *frames()])
        return await super()._answered(exchange)


def test_few_functions_stand_between_a_rollout_and_its_post(
    journal: Journal,
    make_prompts: Callable[[int], list[Prompt]],
    hello: Callable[[ReceivedRequest], Reply],
    tmp_path: Path,
) -> None:
    async def collect(url: str) -> list[list[str]]:
        endpoint = Endpoint(url, "simulated", "simulated")
        client = WatchedClient(endpoint, timeout_s=60.0)
        client.seen = []
        collector = RolloutCollector(
            EverySample(make_prompts(2), 1),
            endpoint=endpoint,
            config=RolloutsConfig(),
            toolbox=Toolbox([]),
            journal=journal,
            runtime=RuntimeConfig(store=str(tmp_path)),
            transport=client,
        )
        async with aclosing(collector), aclosing(client):
            assert len([None async for _ in collector]) == 2
        return client.seen

    with SimulatedProvider(hello) as provider:
        first, second = asyncio.run(collect(provider.url))
    assert first == second
    assert first[-1] == "Scheduler._run"
    assert len(first) <= MOST, first
