import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools import Toolbox, ToolContext, ToolResult
from tests.waiting import arguments, until

pytestmark = pytest.mark.usefixtures("jail")

OpenToolbox = Callable[..., AbstractAsyncContextManager[Toolbox]]


def called(open_toolbox: OpenToolbox, name: str, context: ToolContext | None = None, **arguments: Any) -> ToolResult:
    async def call() -> ToolResult:
        async with open_toolbox() as toolbox:
            return await toolbox.call(name, json.dumps(arguments), context)

    return asyncio.run(call())


def wait_until(num_alive: int, mark: str) -> None:
    """Wait until so many processes run that a tool started with this mark."""
    assert until(
        lambda: (
            sum(mark in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])) == num_alive
        )
    )


def test_arguments_metadata_and_result_travel_and_prints_do_not(open_toolbox) -> None:
    result = called(open_toolbox, "add", left="3")
    assert (result.content, result.error_kind) == ("4", None)
    # An async function that takes a model.
    result = called(open_toolbox, "move", ToolContext("key", "prompt", 0, {"by": 2}), point={"x": 5})
    assert json.loads(result.content) == {"x": "7", "type": "Point", "key": "key"}


def test_only_named_variables_reach_the_file_the_tool_and_what_it_starts(
    open_toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("NAMED", "n")
    monkeypatch.setenv("LANG", "C.UTF-8")

    async def look() -> ToolResult:
        async with open_toolbox(environment=["NAMED", "NOT_SET"]) as toolbox:
            return await toolbox.call("environment", "{}")

    seen = json.loads(asyncio.run(look()).content)
    # Python itself sets LC_CTYPE where the locale is C.
    for place in ("now", "child", "load"):
        assert set(seen[place]) - {"LC_CTYPE"} == {"PATH", "LANG", "HOME", "NAMED"}
    assert seen["now"]["NAMED"] == "n"
    assert seen["args"] == {"NAMED": "n"}


def test_each_call_has_an_empty_folder_that_is_gone_afterwards(open_toolbox) -> None:
    async def twice() -> list[ToolResult]:
        async with open_toolbox() as toolbox:
            return [await toolbox.call("where", "{}") for _ in range(2)]

    first, second = (json.loads(result.content) for result in asyncio.run(twice()))
    assert first["files"] == second["files"] == ["left_behind"]
    assert first["cwd"] == first["home"]
    assert not Path(first["cwd"], "left_behind").exists()


def test_a_tool_sees_no_file_of_this_machine(open_toolbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    paths = [str(secret), str(tmp_path), str(Path.home() / ".ssh"), "/proc", "/run", "/etc/passwd", "/root", "/home"]
    seen = json.loads(called(open_toolbox, "look", paths=paths).content)
    assert seen.pop("/proc") == ""
    # Python itself may live in a home.
    assert set(seen.pop("/root").split(",")) <= {".pyenv", "FileNotFoundError"}
    assert set(seen.pop("/home").split(",")) <= {"FileNotFoundError", *os.environ.get("USER", "").split()}
    assert set(seen.values()) == {"FileNotFoundError"}


def test_a_tool_reaches_no_server_of_this_machine(open_toolbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        assert "unreachable" in called(open_toolbox, "connect", host=host, port=port).content
        result = called(open_toolbox, "open_look", host=host, port=port)
    # What its decorator names it reaches.
    first, deep, *beside = json.loads(result.content)
    assert (first, deep) == ("shown", "deep")
    assert sorted(beside) == ["shown", "shown.txt"]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("explode", "exception", "KeyError: 'nothing here'"),
        ("refuse", "exception", "try another city"),
        ("leave", "exception", "SystemExit: 3"),
        ("vanish", "killed", "code 4"),
        ("crash", "killed", "SIGSEGV"),
        ("eat_memory", "exception", "1024 MiB"),
        ("fill_disk", "exception", "File too large"),
    ],
)
def test_what_goes_wrong_is_a_message(open_toolbox, name: str, kind: str, message: str) -> None:
    result = called(open_toolbox, name)
    assert result.error_kind == kind
    assert message in json.loads(result.content)["error"]


def test_a_result_may_be_long_but_not_endless(open_toolbox) -> None:
    result = called(open_toolbox, "talk", num_bytes=5_000_000)
    assert result.is_cut
    result = called(open_toolbox, "talk", num_bytes=20_000_000)
    assert result.error_kind == "killed"
    assert "10000000 bytes" in result.content


@pytest.mark.parametrize(("name", "kind"), [("hang", "timeout"), ("litter", None)])
def test_all_that_the_tool_started_is_killed_when_time_is_up_or_it_returns(open_toolbox, name, kind) -> None:
    assert called(open_toolbox, name, mark="late-sleeper").error_kind == kind
    wait_until(0, "late-sleeper")


def test_a_cancelled_call_leaves_nothing_behind(open_toolbox) -> None:
    async def give_up() -> None:
        async with open_toolbox() as toolbox:
            calling = asyncio.create_task(toolbox.call("hang", '{"mark": "cancelled-sleeper"}'))
            await asyncio.to_thread(wait_until, 3, "cancelled-sleeper")
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            await asyncio.to_thread(wait_until, 0, "cancelled-sleeper")

    asyncio.run(give_up())


def test_a_fork_bomb_is_stopped(open_toolbox) -> None:
    result = called(open_toolbox, "bomb")
    # The kernel's limit, or the supervisor's where the kernel does not count.
    assert result.error_kind in ("exception", "killed")
    assert re.search("BlockingIOError|started more than 64 processes", result.content)


def test_calls_run_side_by_side_up_to_the_limit(open_toolbox) -> None:
    async def eight() -> list[ToolResult]:
        async with open_toolbox() as toolbox:
            await toolbox.call("add", '{"left": 1}')
            return await asyncio.gather(*(toolbox.call("sleep", '{"seconds": 0.4}') for _ in range(8)))

    spans = [json.loads(result.content) for result in asyncio.run(eight())]
    at_once = [sum(begun <= start < ended for begun, ended in spans) for start, _ in spans]
    assert 1 < max(at_once) <= 4


def test_a_killed_server_comes_back_with_the_next_call(open_toolbox) -> None:
    def servers() -> set[psutil.Process]:
        children = psutil.Process().children()
        return {child for child in children if "stillhouse.tools.sandbox_worker" in arguments(child)}

    async def kill_between() -> ToolResult:
        of_other_tests = servers()
        async with open_toolbox() as toolbox:
            (server,) = servers() - of_other_tests
            server.kill()
            # A call of the same moment may still go to the old one.
            for _ in range(100):
                result = await toolbox.call("add", '{"left": 1}')
                if result.error_kind != "killed":
                    break
            return result

    assert asyncio.run(kill_between()).content == "2"


def test_a_killed_run_takes_its_sandboxes_with_it(tools_file: Path) -> None:
    program = (
        "import asyncio, sys\nfrom stillhouse.config import ToolsConfig\nfrom stillhouse.tools import Toolbox\n"
        "toolbox = Toolbox.from_config(ToolsConfig(file=sys.argv[1]))\n"
        "asyncio.run(toolbox.call('hang', '{\"mark\": \"orphan-sleeper\"}'))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tools_file)]) as run:
        wait_until(3, "orphan-sleeper")
        run.kill()
    wait_until(0, "orphan-sleeper")


def test_a_file_that_needs_a_secret_to_load_is_refused_before_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s")
    path = tmp_path / "needy.py"
    path.write_text(
        "import os\nfrom stillhouse.tools import tool\nSECRET = os.environ['SECRET']\n"
        "@tool(sandbox=True)\ndef tell() -> str:\n    'Tells.'\n    return SECRET\n"
    )

    async def enter(*names: str) -> ToolResult:
        async with Toolbox.from_config(ToolsConfig(file=str(path), environment=names)) as toolbox:
            return await toolbox.call("tell", "{}")

    with pytest.raises(ConfigError, match=r"needy\.py.*line 3.*KeyError.*tools\.environment"):
        asyncio.run(enter())
    assert asyncio.run(enter("SECRET")).content == "s"
