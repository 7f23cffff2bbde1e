import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.config import McpServerConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.context import ToolError
from stillhouse.tools.mcp_servers.server import MAX_CONNECTS
from stillhouse.tools.mcp_servers.tools import McpTools

Config = Callable[..., McpServerConfig]
ADDITIONS = [{"rollout": str(number), "left": number} for number in range(64)]
SUMS = [str(number + 1) for number in range(64)]


@pytest.fixture
def config(http_server) -> Config:
    return lambda **fields: McpServerConfig(name="shop", url=http_server.url, **fields)


@pytest.mark.slow
def test_64_rollouts_at_once_get_a_session_each_and_connect_a_few_at_a_time(config, offer) -> None:
    rollouts = offer(config())
    assert rollouts.together("add", *ADDITIONS) == SUMS
    num_connects, most_at_once = map(int, rollouts.call("connects", rollout="0").split())
    # One more listed the tools when the run started.
    assert num_connects == 65
    assert 1 < most_at_once <= MAX_CONNECTS
    for addition in ADDITIONS:
        rollouts.end(addition["rollout"])


def test_64_rollouts_share_the_one_session_of_a_stateless_server(config, offer) -> None:
    rollouts = offer(config(stateless=True))
    assert rollouts.together("add", *ADDITIONS) == SUMS
    assert rollouts.call("connects") == "1 1"


def test_a_session_the_server_does_not_know_any_more_is_replaced(http_server, config, offer) -> None:
    stateless, stateful = offer(config(stateless=True)), offer(config())
    assert stateless.call("count_up") == "1"
    assert stateful.call("count_up") == "2"
    http_server.kill()
    http_server.start()
    assert stateless.call("count_up") == "1"
    with pytest.raises(ToolError, match="gone"):
        stateful.call("count_up")
    assert stateful.call("count_up") == "2"


def test_a_server_killed_in_the_middle_of_a_call_ends_that_call_and_not_the_run(
    http_server, config, offer, tmp_path: Path
) -> None:
    rollouts = offer(config())

    async def kill_during_a_call() -> None:
        hanging = asyncio.create_task(rollouts.start("hang"))
        while not (tmp_path / "hanging").exists():
            await asyncio.sleep(0.02)
        await asyncio.to_thread(http_server.kill)
        await hanging

    with pytest.raises(ToolError, match="carried out"):
        asyncio.run(kill_during_a_call())
    with pytest.raises(ToolError, match="reached"):
        rollouts.call("add", left=1)
    http_server.start()
    assert rollouts.call("add", left=1) == "2"


def test_headers_come_from_the_environment(config, offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").touch()
    with pytest.raises(ConfigError, match="'shop'"):
        McpTools([config()])
    monkeypatch.setenv("SHOP_KEY", "Bearer shop")
    assert offer(config(headers_env={"Authorization": "SHOP_KEY"})).call("add", left=1) == "2"


def test_a_server_without_sessions_is_used_where_it_is_declared_stateless(config, offer, tmp_path: Path) -> None:
    (tmp_path / "modern").touch()
    assert offer(config(stateless=True)).call("add", left=1) == "2"
    with pytest.raises(ConfigError, match="stateless: true"):
        McpTools([config()])
