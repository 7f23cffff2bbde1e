import asyncio
import json
import re
from pathlib import Path

import pytest

from stillhouse.config import McpServerConfig, ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools import Toolbox
from stillhouse.tools.calls import CallFailed
from stillhouse.tools.context import ToolError
from stillhouse.tools.mcp_servers.tools import McpTools
from stillhouse.types import JsonObject


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


def test_a_call_that_hangs_is_given_up_and_the_session_goes_on(stdio, offer) -> None:
    rollouts = offer(stdio(), timeout_s=0.2)
    assert rollouts.call("count_up") == "1"
    with pytest.raises(CallFailed, match=r"hang .*0\.2 s"):
        rollouts.call("hang")
    assert rollouts.call("count_up") == "2"


def test_a_call_is_repeated_when_the_server_dies_unless_it_may_have_been_carried_out(
    stdio, offer, tmp_path: Path
) -> None:
    rollouts = offer(stdio())
    assert rollouts.call("read_and_die") == "second time"
    assert (tmp_path / "read").read_text() == "called called "
    with pytest.raises(ToolError, match="carried out"):
        rollouts.call("write_and_die", rollout="second")
    assert (tmp_path / "written").read_text() == "called "
    assert rollouts.call("add", rollout="second", left=1) == "2"


def test_the_model_is_told_that_the_state_of_its_session_is_lost(stdio, offer, tmp_path: Path) -> None:
    rollouts = offer(stdio())
    assert rollouts.call("count_up") == "1"
    with pytest.raises(ToolError, match="gone"):
        rollouts.call("read_and_die")
    assert rollouts.call("count_up") == "1"
    assert (tmp_path / "read").read_text() == "called "


def test_a_tool_that_was_changed_during_the_run_is_not_called(
    stdio, offer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts = offer(stdio())
    (tmp_path / "changed").touch()
    with pytest.raises(ToolError, match="changed add"):
        rollouts.call("add", left=1)
    assert rollouts.call("count_up") == "1"
    assert "tool add is no longer what it was" in caplog.text


def test_a_server_that_cannot_be_used_and_a_tool_or_variable_that_is_missing_are_named(
    stdio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_KEY", raising=False)
    headers = {"Authorization": "SHOP_KEY"}
    for servers, named in (
        ([stdio(allow=("add", "subtract"))], "subtract"),
        ([stdio(), stdio(name="market", allow=("add",))], "'shop' and 'market'"),
        ([McpServerConfig(name="shop", command=("no-such-program",))], "no-such-program"),
        ([stdio(environment=("SHOP_KEY",))], "SHOP_KEY"),
        ([McpServerConfig(name="shop", url="http://127.0.0.1:1/", headers_env=headers)], "SHOP_KEY"),
    ):
        with pytest.raises(ConfigError, match=named):
            McpTools(servers)


def test_a_toolbox_closes_the_sessions_of_its_servers_and_serves_again(stdio) -> None:
    toolbox = Toolbox.from_config(ToolsConfig(mcp=(stdio(stateless=True),)))

    async def use() -> list[str]:
        async with toolbox:
            calls = (toolbox.call("count_up", "{}") for _ in range(12))
            return [result.content for result in await asyncio.gather(*calls)]

    for _ in range(2):
        assert sorted(map(int, asyncio.run(use()))) == list(range(1, 13))


def result(*content: object, **fields: object) -> JsonObject:
    return {"content": list(content), **fields}


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


MAP = {"uri": "shop://map", "mimeType": "image/webp", "blob": "eA=="}
RESULTS: dict[str, tuple[JsonObject, str]] = {
    "texts": (result(text("a"), text("b\nc"), structuredContent={"price": 3}), "a\nb\nc"),
    "image": (result({"type": "image", "data": "eA==", "mimeType": "image/png"}), "[image (image/png) that cannot be "),
    "audio": (result({"type": "audio", "data": "eA==", "mimeType": "audio/wav"}), "[audio (audio/wav) that cannot be "),
    "link": (
        result({"type": "resource_link", "name": "report", "uri": "file:///r.pdf"}),
        "[resource report: file:///r",
    ),
    "map": (result({"type": "resource", "resource": MAP}), "[resource shop://map (image/webp) that cannot be shown"),
    "note": (result({"type": "resource", "resource": {"uri": "shop://note", "text": "the note"}}), "the note"),
    "structured_alone": ({"structuredContent": {"price": 3}}, '{"price": 3}'),
    "structured_beside_nothing": (result(structuredContent={"price": 3}), '{"price": 3}'),
    "structured_list": (result(text("three"), structuredContent=[3]), "three"),
    "structured_absent": (result(text("three")), "three"),
    "structured_null": (result(text("three"), structuredContent=None), "three"),
    "structured_wrong": (result(text("three"), structuredContent={"price": "three"}), "three"),
    "empty": (result(), ""),
    "null": ({"content": None, "isError": False}, ""),
    "words": ({"content": "three"}, "three"),
    "one_block": ({"content": text("three")}, "three"),
    "unknown_type": (result(text("a"), {"type": "video", "data": "eA=="}), "a\n[video that cannot be shown here]"),
    "unknown_type_with_text": (result({"type": "thinking", "text": "three"}), "three"),
    "image_without_type": (
        result(text("a"), {"type": "image", "data": "eA=="}),
        "a\n[image that cannot be shown here]",
    ),
    "untyped": (result({"text": "three"}), "three"),
    "null_text": (result({"type": "text", "text": None}, text("a")), "[text that cannot be shown here]\na"),
}
ERRORS: dict[str, tuple[JsonObject, str]] = {
    "fails": (result(text("sold out"), isError=True), "sold out"),
    "fails_structured": ({"structuredContent": {"why": "sold out"}, "isError": True}, '{"why": "sold out"}'),
    "fails_silently": (result(isError=True), "did not say why"),
    "fails_beside_odd_content": (result({"type": "oops"}, text("sold out"), isError=True), "sold out"),
    "nothing": ({}, "no result"),
}


def test_every_form_of_a_result_reaches_the_model_as_its_text(canned, offer) -> None:
    rollouts = offer(canned({name: answer for name, (answer, _) in (RESULTS | ERRORS).items()}))
    for name, (_, expected) in RESULTS.items():
        content = rollouts.call(name)
        assert content.startswith(expected), name
        assert bool(content) is bool(expected), name
    for name, (_, message) in ERRORS.items():
        with pytest.raises(ToolError, match=re.escape(message)):
            rollouts.call(name)


def test_names_that_sellers_refuse_are_offered_as_near_ones_and_called_by_their_own(canned) -> None:
    long = "x" * 70
    own = ["add", "files.read", "files/read", "get price", "größe", "files_list", "files.list", long + "a", long + "b"]
    config = canned({name: result(text(f"this is {name}")) for name in [*own, "other"]}, allow=tuple(own))
    toolbox = Toolbox.from_config(ToolsConfig(mcp=(config,)))
    offered = dict(zip(toolbox.names, own, strict=True))
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in offered)
    assert {name for name in offered if name == offered[name]} == {"add", "files_list"}
    assert {"get_price", "gr__e"} < offered.keys()
    # The server leaves the type out.
    assert all(schema["function"]["parameters"] == {"type": "object"} for schema in toolbox.schemas())

    async def use() -> None:
        async with toolbox:
            for name, called in offered.items():
                assert (await toolbox.call(name, "{}")).content == f"this is {called}"

    asyncio.run(use())


def test_half_a_character_in_a_result_does_not_hold_up_its_call(canned, offer) -> None:
    config = canned({"halved": result(text("half \ud83d"))})
    rollouts = offer(config, timeout_s=5)
    if config.url is None:
        assert rollouts.call("halved") == "half ?"
    else:
        # The package itself reads what comes over HTTP.
        with pytest.raises(ToolError, match="no result"):
            rollouts.call("halved")
