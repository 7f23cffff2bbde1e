import asyncio
import json
from pathlib import Path

import mcp_types
import pytest
from mcp_types import AudioContent, BlobResourceContents, EmbeddedResource, ImageContent, ResourceLink, TextContent

from stillhouse.config import McpServerConfig, ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools import Toolbox
from stillhouse.tools.calls import CallFailed
from stillhouse.tools.context import ToolError
from stillhouse.tools.mcp_servers.tools import McpTools, as_text

NOTE = mcp_types.TextResourceContents(uri="shop://note", text="the note")
MAP = BlobResourceContents(uri="shop://map", mime_type="image/webp", blob="eA==")


def test_tools_are_offered_as_the_server_describes_them(stdio) -> None:
    tools = McpTools([stdio(allow=("add",))])
    asyncio.run(tools.close())
    (add,) = tools.tools
    function = add.schema["function"]
    assert (add.name, function["name"], function["description"]) == ("add", "add", "Sum of two numbers.")
    assert function["parameters"]["required"] == ["left"]
    assert add.read_arguments({"left": "2"}) == {"arguments": {"left": 2}}


def test_answers_errors_and_pictures_reach_the_model_as_text(stdio, offer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", "open")
    monkeypatch.setenv("SECRET", "key")
    rollouts = offer(stdio(environment=("SHOP",)))
    assert rollouts.call("add", left=2, right=3) == "5"
    assert rollouts.call("picture") == "[image (image/png) that cannot be shown here]\nword"
    with pytest.raises(ToolError, match="sold out"):
        rollouts.call("fail", why="sold out")
    with pytest.raises(ToolError):
        rollouts.call("add", left="no number")
    seen = json.loads(rollouts.call("environment"))
    assert seen["SHOP"] == "open"
    assert set(seen) - {"LC_CTYPE"} == {"PATH", "HOME", "SHOP"}


def test_each_rollout_has_a_session_of_its_own_that_ends_with_it(stdio, offer) -> None:
    rollouts = offer(stdio())
    assert sorted(rollouts.together("count_up", {}, {}, {})) == ["1", "2", "3"]
    assert rollouts.call("count_up", rollout="second") == "1"
    rollouts.end()
    assert rollouts.call("count_up") == "1"


def test_rollouts_share_the_session_of_a_stateless_server(stdio, offer) -> None:
    rollouts = offer(stdio(stateless=True))
    assert rollouts.call("count_up") == "1"
    rollouts.end()
    assert rollouts.call("count_up", rollout="second") == "2"


def test_a_call_that_hangs_is_given_up_and_the_session_goes_on(stdio, offer) -> None:
    rollouts = offer(stdio(timeout_s=0.2))
    assert rollouts.call("count_up") == "1"
    with pytest.raises(CallFailed, match=r"hang did not return within 0\.2 s"):
        rollouts.call("hang")
    assert rollouts.call("count_up") == "2"


def test_a_call_is_repeated_when_the_server_dies_unless_it_may_have_been_carried_out(
    stdio, offer, tmp_path: Path
) -> None:
    rollouts = offer(stdio())
    assert rollouts.call("read_and_die") == "second time"
    assert (tmp_path / "read").read_text() == "called called "
    with pytest.raises(ToolError, match="may or may not have been carried out"):
        rollouts.call("write_and_die", rollout="second")
    assert (tmp_path / "written").read_text() == "called "
    assert rollouts.call("add", rollout="second", left=1) == "2"


def test_the_model_is_told_that_the_state_of_its_session_is_lost(stdio, offer, tmp_path: Path) -> None:
    rollouts = offer(stdio())
    assert rollouts.call("count_up") == "1"
    with pytest.raises(ToolError, match="what earlier calls left in it is gone"):
        rollouts.call("read_and_die")
    assert rollouts.call("count_up") == "1"
    assert (tmp_path / "read").read_text() == "called "


def test_a_tool_that_was_changed_during_the_run_is_not_called(
    stdio, offer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts = offer(stdio())
    (tmp_path / "changed").touch()
    with pytest.raises(ToolError, match="has changed add"):
        rollouts.call("add", left=1)
    assert rollouts.call("count_up") == "1"
    assert "tool add is no longer what it was" in caplog.text


def test_an_allowed_tool_that_is_not_there_is_named(stdio) -> None:
    with pytest.raises(ConfigError, match=r"'shop' has no tool 'subtract', which its allow-list names; it has: add, "):
        McpTools([stdio(allow=("add", "subtract"))])


def test_two_servers_with_a_tool_of_one_name_are_named(stdio) -> None:
    with pytest.raises(ConfigError, match=r"'shop' and 'market' both have a tool 'add'"):
        McpTools([stdio(), stdio(name="market", allow=("add",))])


def test_a_server_that_does_not_start_is_named_with_what_it_wrote() -> None:
    with pytest.raises(ConfigError, match=r"(?s)'shop' \(no-such-program\) cannot be used: .*No such file"):
        McpTools([McpServerConfig(name="shop", command=("no-such-program",))])


def test_a_variable_that_is_not_set_is_named(stdio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_KEY", raising=False)
    with pytest.raises(ConfigError, match="variable SHOP_KEY"):
        McpTools([stdio(environment=("SHOP_KEY",))])
    with pytest.raises(ConfigError, match="variable SHOP_KEY"):
        McpTools([McpServerConfig(name="shop", url="http://127.0.0.1:1/", headers_env={"Authorization": "SHOP_KEY"})])


def test_a_toolbox_closes_the_sessions_of_its_servers_and_serves_again(stdio) -> None:
    toolbox = Toolbox.from_config(ToolsConfig(mcp=(stdio(stateless=True),)))

    async def use() -> list[str]:
        async with toolbox:
            calls = (toolbox.call("count_up", "{}") for _ in range(12))
            return [result.content for result in await asyncio.gather(*calls)]

    for _ in range(2):
        assert sorted(map(int, asyncio.run(use()))) == list(range(1, 13))


@pytest.mark.parametrize(
    ("content", "structured", "text"),
    [
        ([TextContent(text="a"), TextContent(text="b\nc")], None, "a\nb\nc"),
        ([ImageContent(data="eA==", mime_type="image/png")], None, "[image (image/png) that cannot be shown here]"),
        ([AudioContent(data="eA==", mime_type="audio/wav")], None, "[audio (audio/wav) that cannot be shown here]"),
        ([ResourceLink(name="report", uri="file:///report.pdf")], None, "[resource report: file:///report.pdf]"),
        ([EmbeddedResource(resource=MAP)], None, "[resource shop://map (image/webp) that cannot be shown here]"),
        ([EmbeddedResource(resource=NOTE)], None, "the note"),
        ([], {"price": 3}, '{"price": 3}'),
        ([TextContent(text="three")], {"price": 3}, "three"),
        ([], None, ""),
    ],
)
def test_a_result_is_written_as_text(
    content: list[mcp_types.ContentBlock], structured: dict[str, int] | None, text: str
) -> None:
    assert as_text(mcp_types.CallToolResult(content=content, structured_content=structured)) == text
