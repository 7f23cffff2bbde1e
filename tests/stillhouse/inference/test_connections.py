import asyncio

from stillhouse.inference.connections import shared_connections
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.sampling import ChatRequest, Sampling
from tests.provider import Reply, SimulatedProvider, completion


async def ask(url: str, api_key: str) -> None:
    endpoint = Endpoint(url, "m", "m", api_key)
    client = ModelClient(endpoint, HttpClient(endpoint, timeout_s=5))
    try:
        await client.complete(ChatRequest([{"role": "user", "content": "hi"}], [], Sampling(0.5, 0.9, 8, None)))
    finally:
        await client.aclose()


def test_clients_inside_share_a_connection_and_those_outside_or_on_another_loop_have_their_own() -> None:
    keys: list[str | None] = []

    async def main(url: str) -> None:
        async with shared_connections():
            await ask(url, "first-key")
            await asyncio.create_task(ask(url, "second-key"))
            await asyncio.to_thread(lambda: asyncio.run(ask(url, "of another loop")))
        await ask(url, "from outside")

    with SimulatedProvider(lambda request: keys.append(request.authorization) or Reply(completion("hi"))) as provider:
        asyncio.run(main(provider.url))
        assert provider.num_connections == 3
    assert keys[:2] == ["Bearer first-key", "Bearer second-key"]
