import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import McpServerConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.context import ToolError
from stillhouse.tools.mcp_servers.server import MAX_CONNECTS
from stillhouse.tools.mcp_servers.tools import McpTools

WithTools = Callable[..., Any]


def test_64_rollouts_at_once_get_a_session_each_and_connect_a_few_at_a_time(
    http_server: Any, with_tools: WithTools
) -> None:
    async def work(rollouts: Any) -> str:
        names = [str(number) for number in range(64)]
        sums = await asyncio.gather(
            *(rollouts.call("add", {"left": number}, rollout=name) for number, name in enumerate(names))
        )
        assert sums == [str(number + 1) for number in range(64)]
        counted = await rollouts.call("connects", rollout="0")
        await asyncio.gather(*(rollouts.end(name) for name in names))
        return counted

    num_connects, most_at_once = map(int, with_tools(work, McpServerConfig(name="shop", url=http_server.url)).split())
    # One more listed the tools when the run started.
    assert num_connects == 65
    assert 1 < most_at_once <= MAX_CONNECTS


def test_64_rollouts_share_the_one_session_of_a_stateless_server(http_server: Any, with_tools: WithTools) -> None:
    async def work(rollouts: Any) -> str:
        calls = (rollouts.call("add", {"left": number}, rollout=str(number)) for number in range(64))
        assert await asyncio.gather(*calls) == [str(number + 1) for number in range(64)]
        return await rollouts.call("connects")

    config = McpServerConfig(name="shop", url=http_server.url, stateless=True)
    assert with_tools(work, config) == "1 1"


def test_a_session_the_server_does_not_know_any_more_is_replaced_and_the_call_repeated(
    http_server: Any, with_tools: WithTools
) -> None:
    async def work(rollouts: Any) -> None:
        assert await rollouts.call("count_up") == "1"
        await asyncio.to_thread(http_server.kill)
        await asyncio.to_thread(http_server.start)
        assert await rollouts.call("count_up") == "1"

    with_tools(work, McpServerConfig(name="shop", url=http_server.url, stateless=True))


def test_a_rollout_is_told_that_the_server_forgot_its_session(http_server: Any, with_tools: WithTools) -> None:
    async def work(rollouts: Any) -> None:
        assert await rollouts.call("count_up") == "1"
        await asyncio.to_thread(http_server.kill)
        await asyncio.to_thread(http_server.start)
        with pytest.raises(ToolError, match="what earlier calls left in it is gone"):
            await rollouts.call("count_up")
        assert await rollouts.call("count_up") == "1"

    with_tools(work, McpServerConfig(name="shop", url=http_server.url))


def test_a_server_killed_in_the_middle_of_a_call_ends_that_call_and_not_the_run(
    http_server: Any, with_tools: WithTools, tmp_path: Path
) -> None:
    async def work(rollouts: Any) -> None:
        hanging = asyncio.create_task(rollouts.call("hang"))
        for _ in range(100):
            await asyncio.sleep(0.02)
            if (tmp_path / "hanging").exists():
                break
        await asyncio.to_thread(http_server.kill)
        with pytest.raises(ToolError, match="may or may not have been carried out"):
            await hanging
        started = time.monotonic()
        with pytest.raises(ToolError, match="shop cannot be reached"):
            await rollouts.call("add", {"left": 1})
        assert time.monotonic() - started < 5.0
        await asyncio.to_thread(http_server.start)
        assert await rollouts.call("add", {"left": 1}) == "2"

    with_tools(work, McpServerConfig(name="shop", url=http_server.url))


def test_headers_come_from_the_environment(
    http_server: Any, with_tools: WithTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").touch()
    with pytest.raises(ConfigError, match="'shop'"):
        McpTools([McpServerConfig(name="shop", url=http_server.url)])

    async def work(rollouts: Any) -> None:
        assert await rollouts.call("add", {"left": 1}) == "2"

    monkeypatch.setenv("SHOP_KEY", "Bearer shop")
    with_tools(work, McpServerConfig(name="shop", url=http_server.url, headers_env={"Authorization": "SHOP_KEY"}))


def test_a_server_without_sessions_is_used_where_it_is_declared_stateless(
    http_server: Any, with_tools: WithTools, tmp_path: Path
) -> None:
    (tmp_path / "modern").touch()

    async def work(rollouts: Any) -> None:
        assert await rollouts.call("add", {"left": 1}) == "2"

    with_tools(work, McpServerConfig(name="shop", url=http_server.url, stateless=True))
    with pytest.raises(ConfigError, match="declare it with `stateless: true`"):
        McpTools([McpServerConfig(name="shop", url=http_server.url)])
