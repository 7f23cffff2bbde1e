import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from stillhouse.errors import ConfigError
from stillhouse.tools import (
    MALFORMED_TOOL_CALL,
    RolloutScope,
    Tool,
    ToolArgs,
    Toolbox,
    ToolContext,
    ToolError,
    ToolResult,
    tool,
)
from stillhouse.tools.arguments import reader_of_schema
from stillhouse.tools.calculator import calculator as builtin_calculator
from stillhouse.types import JsonObject, ToolSchema

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


@tool
def refuse() -> str:
    """Says what went wrong in its own words."""
    raise ToolError("try another city")


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


TOOLBOX = Toolbox([add, add_async, locate, explode, leave, refuse, hang, hang_async, say])


@pytest.fixture(params=["async", "sync"])
def call(request: pytest.FixtureRequest) -> Call:
    if request.param == "sync":
        return TOOLBOX.call_sync
    return lambda name, arguments: asyncio.run(TOOLBOX.call(name, arguments))


@pytest.mark.parametrize(
    ("name", "arguments", "content"),
    [
        ("add", '{"left": "3"}', "4"),
        ("add", json.dumps('{"left": 3}'), "4"),
        ("add_async", '{"left": 3}', "4"),
        ("locate", '{"point": {"x": 5}}', '{"x":5}'),
        ("say", '{"text": "half a character becomes "}', "half a character becomes ?"),
    ],
)
def test_arguments_are_read_and_results_written(call, name: str, arguments: str, content: str) -> None:
    result = call(name, arguments)
    assert (result.content, result.error_kind) == (content, None)
    assert result.latency_s >= 0


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "message"),
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
        ("refuse", "{}", "exception", "try another city"),
        ("hang", "{}", "timeout", "hang did not return within 0.1 s"),
        ("hang_async", "{}", "timeout", "hang_async did not return within 0.1 s"),
    ],
)
def test_every_failure_is_a_message_and_a_kind(call, name: str, arguments: str, kind: str, message: str) -> None:
    result = call(name, arguments)
    assert result.error_kind == kind
    assert message in json.loads(result.content)["error"]


def test_a_hanging_tool_does_not_hold_up_the_event_loop() -> None:
    async def both() -> float:
        waiting = asyncio.create_task(TOOLBOX.call("hang", "{}"))
        started = time.perf_counter()
        await TOOLBOX.call("add", '{"left": 1}')
        elapsed = time.perf_counter() - started
        await waiting
        return elapsed

    assert asyncio.run(both()) < 0.09


def test_a_process_with_a_hanging_tool_can_exit() -> None:
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


def test_a_selection_offers_its_tools_alone_and_names_only_configured_ones() -> None:
    selected = TOOLBOX.select(["locate", "add"])
    assert [schema["function"]["name"] for schema in selected.schemas()] == ["locate", "add"]
    assert selected.call_sync("explode", "{}").error_kind == "unknown_tool"
    assert TOOLBOX.select([]).schemas() == []
    with pytest.raises(ConfigError, match="'browse' is not configured; configured are: add, "):
        TOOLBOX.select(["browse"])


def test_two_tools_of_one_name_are_refused() -> None:
    @tool
    def calculator() -> str:
        """Another."""
        return ""

    with pytest.raises(ConfigError, match="two tools are called 'calculator'"):
        Toolbox([builtin_calculator, calculator])


class Session:
    """What a rollout keeps: counts its calls, and is told when it ends."""

    def __init__(self, ended: list[int]) -> None:
        self.num_calls = 0
        self.ended = ended

    async def close(self) -> None:
        self.ended.append(self.num_calls)


@pytest.fixture
def counting() -> tuple[Tool, list[int]]:
    ended: list[int] = []

    async def count(arguments: JsonObject, scope: RolloutScope) -> str:
        session = scope.keep("counter", lambda: Session(ended))
        session.num_calls += arguments["by"]
        return str(session.num_calls)

    parameters = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
    described: ToolSchema = {
        "type": "function",
        "function": {"name": "count", "description": "Counts.", "parameters": parameters},
    }
    reads, writes = reader_of_schema(parameters), str
    named: dict[str, Any] = {"name": "count", "schema": described, "scope_parameter": "scope"}
    return Tool(function=count, read_arguments=reads, write_result=writes, **named), ended


def test_a_rollout_keeps_what_its_calls_share_and_ends_it(counting: tuple[Tool, list[int]]) -> None:
    count, ended = counting
    toolbox = Toolbox([count])

    async def two_rollouts() -> list[str]:
        contents = []
        for _ in range(2):
            async with toolbox.rollout(ToolContext()) as bound:
                contents += [(await bound.call("count", '{"by": "2"}')).content for _ in range(2)]
        return contents

    assert asyncio.run(two_rollouts()) == ["2", "4", "2", "4"]
    assert ended == [4, 4]
    assert toolbox.call_sync("count", '{"by": 1}').content == "1"
    assert ended == [4, 4, 1]
    assert toolbox.call_sync("count", "{}").error_kind == "invalid_arguments"


def test_what_does_not_close_keeps_nothing_else_open_and_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[int] = []

    class Failing(Session):
        async def close(self) -> None:
            raise OSError("gone")

    async def run() -> None:
        scope = RolloutScope(ToolContext())
        scope.keep("first", lambda: Session(ended))
        scope.keep("second", lambda: Failing(ended))
        await scope.close()
        async with Toolbox([add], resources=[Failing(ended), Session(ended)]):
            pass

    asyncio.run(run())
    assert ended == [0, 0]
    assert caplog.messages == ["tools: Failing did not close: OSError: gone"] * 2


def test_a_tool_is_told_whose_call_it_runs_and_only_named_variables(counting: tuple[Tool, list[int]]) -> None:
    @tool
    def whose(args: ToolArgs, suffix: str) -> str:
        """Whose call it is."""
        return f"{args.metadata['name']}{suffix} {args.rollout_key} {args.sample_index} {dict(args.environment)}"

    toolbox = Toolbox([add, counting[0], whose], environment={"NAMED": "n"})
    context = ToolContext("key", "prompt", 3, {"name": "Ann"})
    assert toolbox.call_sync("whose", '{"suffix": "!"}', context).content == "Ann! key 3 {'NAMED': 'n'}"
    assert toolbox.call_sync("whose", '{"suffix": "!", "args": {}}', context).error_kind == "invalid_arguments"
    assert toolbox.takes_context
    assert not toolbox.select(["add", "count"]).takes_context


def test_waiting_for_a_place_does_not_count_into_the_timeout() -> None:
    most = threading.Semaphore(2)

    @tool(timeout_s=1.0, max_concurrency=2)
    def crowded() -> bool:
        """Takes a while, and would fail in a crowd."""
        alone = most.acquire(blocking=False)
        time.sleep(0.3)
        most.release()
        return alone

    async def many() -> list[ToolResult]:
        toolbox = Toolbox([crowded])
        return await asyncio.gather(*(toolbox.call("crowded", "{}") for _ in range(10)))

    results = asyncio.run(many())
    assert [result.content for result in results] == ["true"] * 10
    assert max(result.latency_s for result in results) < 1.0


def test_an_async_tool_that_ends_the_interpreter_harms_no_other_call(call) -> None:
    @tool
    async def leave_async() -> str:
        """Ends the interpreter."""
        sys.exit(3)

    result = Toolbox([leave_async]).call_sync("leave_async", "{}")
    assert json.loads(result.content)["error"] == "SystemExit: 3"
    assert call("add_async", '{"left": 3}').content == "4"


def test_an_async_tool_that_blocks_is_given_up_in_time() -> None:
    unblock = threading.Event()

    @tool(timeout_s=0.1)
    async def block() -> str:
        """Blocks its event loop."""
        unblock.wait()
        return ""

    try:
        assert asyncio.run(Toolbox([block]).call("block", "{}")).error_kind == "timeout"
        assert Toolbox([block]).call_sync("block", "{}").error_kind == "timeout"
    finally:
        unblock.set()


def test_a_cancelled_call_cancels_its_async_tool_and_gives_its_place_back() -> None:
    cancelled = threading.Event()

    @tool(max_concurrency=1)
    async def linger(seconds: float) -> str:
        """Lingers."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "done"

    async def give_up() -> ToolResult:
        toolbox = Toolbox([linger])
        calling = asyncio.create_task(toolbox.call("linger", '{"seconds": 60}'))
        await asyncio.sleep(0.05)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        return await toolbox.call("linger", '{"seconds": 0}')

    assert asyncio.run(give_up()).content == "done"
    assert cancelled.wait(5)


def test_what_is_shared_ends_when_the_last_block_is_left() -> None:
    ended: list[int] = []

    async def nested() -> None:
        toolbox = Toolbox([add], resources=[Session(ended)])
        async with toolbox:
            async with toolbox:
                pass
            assert ended == []
        assert ended == [0]

    asyncio.run(nested())
