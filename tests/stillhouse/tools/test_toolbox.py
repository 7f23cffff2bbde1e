import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from stillhouse.errors import ConfigError
from stillhouse.tools import MALFORMED_TOOL_CALL, Toolbox, ToolResult, tool
from stillhouse.tools.calculator import calculator as builtin_calculator

Call = Callable[[str, str], ToolResult]


class Point(BaseModel):
    x: int


@tool
def add(left: int, right: int = 1) -> int:
    """Sum of two numbers."""
    return left + right


@tool
async def add_async(left: int) -> int:
    """One more."""
    await asyncio.sleep(0)
    return left + 1


@tool
def locate(point: Point) -> dict[str, int]:
    """Where a point is."""
    return {"x": point.x}


@tool
def explode() -> str:
    """Raises."""
    raise KeyError("nothing here")


@tool
def leave() -> str:
    """Ends the interpreter."""
    sys.exit(3)


@tool(timeout_s=0.1)
def hang() -> str:
    """Never returns."""
    threading.Event().wait()
    return ""


@tool(timeout_s=0.1)
async def hang_async() -> str:
    """Never returns, and refuses to be cancelled."""
    while True:
        try:
            await asyncio.sleep(30)
            return ""
        except asyncio.CancelledError:
            pass


@tool
def say(text: str) -> str:
    """Says it."""
    return text + "\ud83d"


TOOLBOX = Toolbox([add, add_async, locate, explode, leave, hang, hang_async, say])


@pytest.fixture(params=["async", "sync"])
def call(request: pytest.FixtureRequest) -> Call:
    if request.param == "sync":
        return TOOLBOX.call_sync
    return lambda name, arguments: asyncio.run(TOOLBOX.call(name, arguments))


def test_arguments_are_validated_and_coerced(call: Call) -> None:
    result = call("add", '{"left": "3"}')
    assert (result.content, result.error_kind) == ("4", None)
    assert result.latency_s >= 0


def test_async_tools_and_nested_models_work(call: Call) -> None:
    assert call("add_async", '{"left": 3}').content == "4"
    assert json.loads(call("locate", '{"point": {"x": 5}}').content) == {"x": 5}


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "told"),
    [
        ("subtract", "{}", "unknown_tool", "available tools: add, add_async"),
        ("add", '{"left": 3', "malformed_arguments", "not valid JSON"),
        ("add", "", "malformed_arguments", "not valid JSON"),
        ("add", "[3]", "malformed_arguments", "must be a JSON object, not list"),
        (MALFORMED_TOOL_CALL, '{"name": "add", ', "malformed_arguments", "could not be read"),
        ("add", '{"left": "three"}', "invalid_arguments", "left: "),
        ("add", '{"left": 3, "middle": 4}', "invalid_arguments", "middle: "),
        ("add", "{}", "invalid_arguments", "left: Field required"),
        ("explode", "{}", "exception", "KeyError"),
        ("leave", "{}", "exception", "SystemExit: 3"),
        ("hang", "{}", "timeout", "hang did not return within 0.1 s"),
        ("hang_async", "{}", "timeout", "hang_async did not return within 0.1 s"),
    ],
)
def test_every_failure_is_a_message_and_a_kind(call: Call, name: str, arguments: str, kind: str, told: str) -> None:
    result = call(name, arguments)
    assert result.error_kind == kind
    assert told in json.loads(result.content)["error"]


def test_a_result_with_half_a_character_can_be_written(call: Call) -> None:
    assert call("say", '{"text": "hi"}').content == "hi?"


def test_a_hanging_tool_does_not_hold_up_the_event_loop() -> None:
    async def both() -> float:
        waiting = asyncio.create_task(TOOLBOX.call("hang", "{}"))
        started = time.perf_counter()
        await TOOLBOX.call("add", '{"left": 1}')
        elapsed = time.perf_counter() - started
        await waiting
        return elapsed

    assert asyncio.run(both()) < 0.09


def test_a_process_with_a_hanging_tool_can_exit(tmp_path: Path) -> None:
    program = (
        "import asyncio, time\n"
        "from stillhouse.tools import Toolbox, tool\n"
        "@tool(timeout_s=0.05)\n"
        "def hang() -> str:\n"
        "    'Never returns.'\n"
        "    time.sleep(3600)\n"
        "    return ''\n"
        "box = Toolbox([hang])\n"
        "assert asyncio.run(box.call('hang', '{}')).error_kind == 'timeout'\n"
        "assert box.call_sync('hang', '{}').error_kind == 'timeout'\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0


def test_a_late_result_of_a_tool_that_was_given_up_is_dropped_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    @tool(timeout_s=0.05)
    def slow() -> str:
        """Slow."""
        time.sleep(0.15)
        return ""

    async def wait() -> ToolResult:
        result = await Toolbox([slow]).call("slow", "{}")
        await asyncio.sleep(0.2)
        return result

    assert asyncio.run(wait()).error_kind == "timeout"
    assert capfd.readouterr().err == ""


def test_a_tool_that_is_not_offered_is_unknown() -> None:
    selected = TOOLBOX.select(["locate", "add"])
    assert [schema["function"]["name"] for schema in selected.schemas()] == ["locate", "add"]
    assert selected.call_sync("explode", "{}").error_kind == "unknown_tool"
    assert TOOLBOX.select([]).schemas() == []


def test_a_name_that_is_not_configured_is_refused() -> None:
    with pytest.raises(ConfigError, match="'browse' is not configured; configured are: add, "):
        TOOLBOX.schemas(["browse"])


def test_two_tools_of_one_name_are_refused() -> None:
    @tool
    def calculator() -> str:
        """Another."""
        return ""

    with pytest.raises(ConfigError, match="two tools are called 'calculator'"):
        Toolbox([builtin_calculator, calculator])
