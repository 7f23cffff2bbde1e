import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools import Toolbox, ToolContext, ToolResult

OpenToolbox = Callable[..., AbstractAsyncContextManager[Toolbox]]


def called(open_toolbox: OpenToolbox, name: str, context: ToolContext | None = None, **arguments: Any) -> ToolResult:
    async def call() -> ToolResult:
        async with open_toolbox() as toolbox:
            return await toolbox.call(name, json.dumps(arguments), context)

    return asyncio.run(call())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def noted(path: Path) -> Any:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return json.loads(path.read_text())


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"still alive: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.02)


def test_arguments_and_result_travel_and_prints_do_not(open_toolbox: OpenToolbox) -> None:
    result = called(open_toolbox, "add", left="3")
    assert (result.content, result.error_kind) == ("4", None)


def test_async_functions_models_and_metadata_arrive_as_they_are_in_process(open_toolbox: OpenToolbox) -> None:
    context = ToolContext("key", "prompt", 0, {"by": 2})
    result = called(open_toolbox, "move", context, point={"x": 5})
    assert json.loads(result.content) == {"x": "7", "type": "Point", "key": "key"}


def test_only_named_variables_reach_the_file_the_tool_and_what_it_starts(
    open_toolbox: OpenToolbox, monkeypatch: pytest.MonkeyPatch
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


def test_each_call_has_an_empty_folder_that_is_gone_afterwards(open_toolbox: OpenToolbox) -> None:
    async def twice() -> list[ToolResult]:
        async with open_toolbox() as toolbox:
            return [await toolbox.call("where", "{}") for _ in range(2)]

    first, second = (json.loads(result.content) for result in asyncio.run(twice()))
    assert first["files"] == second["files"] == ["left_behind"]
    assert first["cwd"] == first["home"] != second["cwd"]
    assert first["pid"] != second["pid"]
    assert not Path(first["cwd"]).exists()
    assert not Path(second["cwd"]).exists()


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("explode", "exception", "KeyError: 'nothing here'"),
        ("refuse", "exception", "try another city"),
        ("leave", "exception", "SystemExit: 3"),
        ("vanish", "killed", "vanish ended its process with code 4 before it returned"),
        ("crash", "killed", "crash was killed by SIGSEGV"),
        ("eat_memory", "exception", "MemoryError: at most 1024 MiB are allowed"),
        ("fill_disk", "exception", "OSError: [Errno 27] File too large"),
    ],
)
def test_what_goes_wrong_is_a_message(open_toolbox: OpenToolbox, name: str, kind: str, told: str) -> None:
    result = called(open_toolbox, name)
    assert result.error_kind == kind
    assert json.loads(result.content)["error"] == told


def test_a_result_may_be_long_but_not_endless(open_toolbox: OpenToolbox) -> None:
    assert len(called(open_toolbox, "talk", num_bytes=5_000_000).content) == 5_000_000
    result = called(open_toolbox, "talk", num_bytes=20_000_000)
    assert (result.error_kind, json.loads(result.content)) == (
        "killed",
        {"error": "talk returned more than 10000000 bytes"},
    )


def test_time_being_up_kills_all_that_the_tool_started(open_toolbox: OpenToolbox, tmp_path: Path) -> None:
    started = time.monotonic()
    result = called(open_toolbox, "hang", note=str(tmp_path / "pids"))
    assert result.error_kind == "timeout"
    assert json.loads(result.content)["error"] == "hang did not return within 1.5 s"
    assert time.monotonic() - started < 10
    pids = noted(tmp_path / "pids")
    assert len(pids) == 4
    wait_until_gone(pids)


def test_what_a_tool_leaves_running_is_killed_when_it_returns(open_toolbox: OpenToolbox, tmp_path: Path) -> None:
    assert called(open_toolbox, "litter", note=str(tmp_path / "pids")).content == "done"
    wait_until_gone(noted(tmp_path / "pids"))


def test_a_cancelled_call_leaves_nothing_behind(open_toolbox: OpenToolbox, tmp_path: Path) -> None:
    async def give_up() -> None:
        async with open_toolbox() as toolbox:
            arguments = json.dumps({"note": str(tmp_path / "pids")})
            calling = asyncio.create_task(toolbox.call("hang", arguments))
            pids = await asyncio.to_thread(noted, tmp_path / "pids")
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            await asyncio.to_thread(wait_until_gone, pids)

    asyncio.run(give_up())


def test_a_fork_bomb_is_stopped(open_toolbox: OpenToolbox, tmp_path: Path) -> None:
    result = called(open_toolbox, "bomb", note=str(tmp_path / "pid"))
    assert result.error_kind == "killed"
    assert json.loads(result.content)["error"] == "bomb started more than 64 processes"
    wait_until_gone([int((tmp_path / "pid").read_text())])


def test_calls_run_side_by_side_up_to_the_limit(open_toolbox: OpenToolbox) -> None:
    async def eight() -> tuple[float, list[ToolResult]]:
        async with open_toolbox() as toolbox:
            await toolbox.call("add", '{"left": 1}')
            started = time.monotonic()
            results = await asyncio.gather(*(toolbox.call("sleep", '{"seconds": 0.4}') for _ in range(8)))
            return time.monotonic() - started, results

    elapsed, results = asyncio.run(eight())
    assert [result.content for result in results] == ["0.4"] * 8
    assert 0.8 <= elapsed < 2.4


def test_a_killed_server_comes_back_with_the_next_call(open_toolbox: OpenToolbox) -> None:
    async def kill_between() -> ToolResult:
        async with open_toolbox() as toolbox:
            (server,) = [
                child for child in psutil.Process().children() if "stillhouse.tools.sandbox" in child.cmdline()
            ]
            server.kill()
            # A call of the same moment may still go to the old one.
            for _ in range(100):
                result = await toolbox.call("add", '{"left": 1}')
                if result.error_kind != "killed":
                    break
            return result

    assert asyncio.run(kill_between()).content == "2"


def test_a_killed_run_takes_its_sandboxes_with_it(tools_file: Path, tmp_path: Path) -> None:
    program = (
        "import json, sys\n"
        "from stillhouse.config import ToolsConfig\n"
        "from stillhouse.tools import Toolbox\n"
        "toolbox = Toolbox.from_config(ToolsConfig(file=sys.argv[1]))\n"
        "toolbox.call_sync('hang', json.dumps({'note': sys.argv[2]}))\n"
    )
    note = tmp_path / "pids"
    with subprocess.Popen([sys.executable, "-c", program, str(tools_file), str(note)]) as run:
        pids = noted(note)
        assert is_alive(pids[0])
        run.kill()
    wait_until_gone(pids)


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

    with pytest.raises(ConfigError, match=r"needy\.py, line 3: cannot be loaded: KeyError.*tools\.environment"):
        asyncio.run(enter())
    assert asyncio.run(enter("SECRET")).content == "s"
