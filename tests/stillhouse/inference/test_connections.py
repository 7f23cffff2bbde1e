import asyncio

from stillhouse.inference.connections import shared_connections
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.request import Sampling
from stillhouse.testing import Reply, SimulatedProvider, completion


async def ask(url: str, api_key: str) -> None:
    client = HttpClient(Endpoint(url, "m", "m", api_key), timeout_s=5)
    try:
        await client.complete([{"role": "user", "content": "hi"}], [], Sampling(0.5, 0.9, 8, None))
    finally:
        await client.aclose()


def test_clients_inside_use_one_connection_after_the_other_and_their_own_keys() -> None:
    keys: list[str | None] = []

    async def main(url: str) -> None:
        async with shared_connections():
            await ask(url, "first-key")
            await asyncio.create_task(ask(url, "second-key"))

    with SimulatedProvider(lambda request: keys.append(request.authorization) or Reply(completion("hi"))) as provider:
        asyncio.run(main(provider.url))
        assert provider.num_connections == 1
    assert keys == ["Bearer first-key", "Bearer second-key"]


def test_a_client_outside_or_on_another_loop_has_connections_of_its_own() -> None:
    async def main(url: str) -> None:
        async with shared_connections():
            await ask(url, "key")
            await asyncio.to_thread(lambda: asyncio.run(ask(url, "key")))
        await ask(url, "key")

    with SimulatedProvider(lambda request: Reply(completion("hi"))) as provider:
        asyncio.run(main(provider.url))
        assert provider.num_connections == 3
