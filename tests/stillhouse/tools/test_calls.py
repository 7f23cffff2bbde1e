import asyncio
import concurrent.futures
import json
import math
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import BaseModel

from stillhouse.tools import MALFORMED_TOOL_CALL, Tool, Toolbox, ToolError, ToolResult, tool


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


TOOLBOX = Toolbox([add, add_async, locate, hang, hang_async])


def call(name: str, arguments: str) -> ToolResult:
    return asyncio.run(TOOLBOX.call(name, arguments))


@pytest.mark.parametrize(
    ("name", "arguments", "content"),
    [
        ("add", '{"left": "3"}', "4"),
        ("add", json.dumps('{"left": 3}'), "4"),
        ("add_async", '{"left": 3}', "4"),
        ("locate", '{"point": {"x": 5}}', '{"x":5}'),
    ],
)
def test_arguments_are_read_and_results_written(name: str, arguments: str, content: str) -> None:
    result = call(name, arguments)
    assert (result.content, result.error_kind) == (content, None)
    assert result.latency_s >= 0


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "message"),
    [
        ("subtract", "{}", "unknown_tool", "add, add_async"),
        ("add", '{"left": 3', "malformed_arguments", "not valid JSON"),
        ("add", "", "malformed_arguments", "not valid JSON"),
        ("add", "[3]", "malformed_arguments", "list"),
        (MALFORMED_TOOL_CALL, '{"name": "add", ', "malformed_arguments", "could not be read"),
        ("add", '{"left": "three"}', "invalid_arguments", "left: "),
        ("add", '{"left": 3, "middle": 4}', "invalid_arguments", "middle: "),
        ("add", "{}", "invalid_arguments", "left: "),
        ("hang", "{}", "timeout", "0.1 s"),
        ("hang_async", "{}", "timeout", "0.1 s"),
    ],
)
def test_every_failure_is_a_message_and_a_kind(name: str, arguments: str, kind: str, message: str) -> None:
    result = call(name, arguments)
    assert result.error_kind == kind
    assert message in json.loads(result.content)["error"]


def test_a_hanging_tool_does_not_hold_up_the_event_loop() -> None:
    release = threading.Event()

    @tool
    def held() -> bool:
        """Returns once it is released."""
        return release.wait(60)

    async def both() -> ToolResult:
        toolbox = Toolbox([add, held])
        waiting = asyncio.create_task(toolbox.call("held", "{}"))
        await toolbox.call("add", '{"left": 1}')
        release.set()
        return await waiting

    assert asyncio.run(both()).content == "true"


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
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=240, check=False).returncode == 0


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


def test_waiting_for_a_place_does_not_count_into_the_timeout() -> None:
    most = threading.Semaphore(2)

    @tool(timeout_s=2.0, max_concurrency=2)
    def crowded() -> bool:
        """Takes a while, and would fail in a crowd."""
        alone = most.acquire(blocking=False)
        time.sleep(0.45)
        most.release()
        return alone

    async def many() -> list[ToolResult]:
        toolbox = Toolbox([crowded])
        return await asyncio.gather(*(toolbox.call("crowded", "{}") for _ in range(10)))

    results = asyncio.run(many())
    assert [result.content for result in results] == ["true"] * 10


class Loud(BaseException):
    pass


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "stop": (lambda: StopIteration("end"), "StopIteration: end|RuntimeError: .* raised StopIteration"),
    "stop_async": (lambda: StopAsyncIteration("end"), "StopAsyncIteration: end"),
    "generator": (lambda: GeneratorExit("g"), "GeneratorExit: g"),
    "cancelled": (lambda: asyncio.CancelledError("c"), "CancelledError: c"),
    "cancelled_in_a_pool": (lambda: concurrent.futures.CancelledError("c"), "CancelledError: c"),
    "base": (lambda: Loud("loud"), "Loud: loud"),
    "group": (
        lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("inner")]),
        "BaseExceptionGroup: several: KeyboardInterrupt; ValueError: inner",
    ),
    "surrogate": (lambda: ValueError("half \ud83d"), r"ValueError: half \?"),
    "memory": (MemoryError, "MemoryError"),
    "timeout": (lambda: TimeoutError("t"), "TimeoutError: t"),
    "recursion": (RecursionError, "RecursionError"),
    "wordless": (ToolError, "ToolError"),
    "told": (lambda: ToolError("try another city"), "try another city"),
}


@tool(timeout_s=5)
def fail(kind: str) -> str:
    """Raises."""
    raise RAISED[kind][0]()


@tool(timeout_s=5)
async def fail_async(kind: str) -> str:
    """Raises."""
    raise RAISED[kind][0]()


@tool(timeout_s=5)
def fail_unawaited(kind: str) -> str:
    """Gives a coroutine that it did not await."""
    return fail_async(kind)  # type: ignore[no-any-return]


@tool(timeout_s=5)
def fail_midway(kind: str) -> list[int]:
    """Raises behind the first item of its result."""

    def items() -> Iterator[int]:
        yield 1
        raise RAISED[kind][0]()

    return items()  # type: ignore[return-value]


@tool(timeout_s=5)
async def fail_task(kind: str) -> str:
    """Raises in a task of its own."""
    return await asyncio.create_task(fail_async(kind))


@pytest.mark.parametrize("failing", [fail, fail_async, fail_unawaited, fail_midway, fail_task])
def test_whatever_a_tool_raises_is_the_error_of_its_call_and_of_nothing_more(failing: Tool) -> None:
    toolbox = Toolbox([failing, add, add_async])

    async def use() -> None:
        for kind, (_, message) in RAISED.items():
            result = await toolbox.call(failing.name, json.dumps({"kind": kind}))
            assert result.error_kind == "exception", kind
            assert re.fullmatch(message, json.loads(result.content)["error"]), kind
            for name in ("add", "add_async"):
                assert (await toolbox.call(name, '{"left": 3}')).content == "4", kind

    asyncio.run(use())


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_an_async_tool_that_ends_the_event_loop_harms_no_later_call(how: str) -> None:
    @tool(timeout_s=2)
    async def end_loop() -> str:
        """Ends the event loop of all async tools."""
        if how == "stop":
            asyncio.get_running_loop().stop()
        for task in asyncio.all_tasks() if how == "cancel" else ():
            task.cancel()
        await asyncio.sleep(0)
        return "went on"

    toolbox = Toolbox([end_loop, add_async])
    expected = "went on" if how == "stop" else '{"error": "CancelledError"}'
    assert asyncio.run(toolbox.call("end_loop", "{}")).content == expected
    assert asyncio.run(toolbox.call("add_async", '{"left": 3}')).content == "4"


def test_the_user_can_still_interrupt_a_run_that_waits_for_a_tool() -> None:
    program = (
        "import asyncio, os, signal, threading, time\n"
        "from stillhouse.tools import Toolbox, tool\n"
        "@tool\n"
        "def wait() -> str:\n"
        "    'Waits.'\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(3600)\n"
        "    return ''\n"
        "asyncio.run(Toolbox([wait]).call('wait', '{}'))\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], timeout=240, check=False, stderr=subprocess.PIPE)
    assert finished.returncode == -signal.SIGINT
    assert b"KeyboardInterrupt" in finished.stderr


@dataclass
class Reading:
    at: datetime
    value: Any


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
VALUES: dict[str, tuple[Any, str]] = {
    "text": ("a \x00 b", "a \x00 b"),
    "bytes": (b"caf\xc3\xa9", '"caf\u00e9"'),
    "nan": ({"x": [math.nan, -math.inf]}, '{"x":[null,null]}'),
    "fields": (Reading(datetime(2020, 1, 2, tzinfo=UTC), np.float32(0.5)), '{"at":"2020-01-02T00:00:00Z","value":0.5}'),
    "model": (Point(x=1), '{"x":1}'),
    "numpy": ([np.int64(1), np.bool_(True), np.array([[1.0, math.nan]])], "[1,true,[[1.0,null]]]"),
    "decimal": ([Decimal("1.10"), Fraction(1, 2)], '["1.10","1/2"]'),
    "set": ({3}, "[3]"),
    "another type than declared": ({"a": 1}, '{"a":1}'),
    "generator": ((number**2 for number in range(3)), "[0,1,4]"),
    "half a character": ("half \ud83d", "half ?"),
    "surrogate": ({"a": ["half \ud83d"]}, '{"a":["half ?"]}'),
    "frame": (pd.DataFrame({"a": [1, 2]}), r'"   a\n0  1\n1  2"'),
    "cycle": (CYCLE, '{"error": "the result, of type list, has no JSON form: ValueError: Circular reference'),
    "object": (object(), '{"error": "the result, of type object, has no JSON form: TypeError: object has neither'),
}


@pytest.mark.parametrize("kind", VALUES)
def test_what_a_tool_returns_is_read_as_text_or_json(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    value, expected = VALUES[kind]

    def measure() -> Any:
        """Gives it."""
        return value

    if kind == "another type than declared":
        measure.__annotations__["return"] = int
    content = asyncio.run(Toolbox([tool(measure)]).call("measure", "{}")).content
    assert content.startswith(expected)
    assert content == expected or kind in ("cycle", "object")
    assert capfd.readouterr().err == ""


def test_a_long_result_or_error_is_cut_and_says_so() -> None:
    @tool
    def talk(length: int, as_error: bool = False) -> str:
        """Talks."""
        if as_error:
            raise ToolError("x" * length)
        return "x" * length

    toolbox = Toolbox([talk], max_result_characters=100)
    note = "[cut here: these are the first 100 of 3000000 characters]"
    short, long = (asyncio.run(toolbox.call("talk", json.dumps({"length": length}))) for length in (100, 3_000_000))
    assert (short.content, short.is_cut) == ("x" * 100, False)
    assert (long.content, long.is_cut) == (f"{'x' * 100}\n\n{note}", True)
    failed = asyncio.run(toolbox.call("talk", '{"length": 3000000, "as_error": true}'))
    assert (json.loads(failed.content)["error"], failed.is_cut) == (long.content, True)


def test_an_async_tool_that_blocks_is_given_up_in_time() -> None:
    unblock = threading.Event()

    @tool(timeout_s=0.1)
    async def block() -> str:
        """Blocks its event loop."""
        unblock.wait()
        return ""

    try:
        assert asyncio.run(Toolbox([block]).call("block", "{}")).error_kind == "timeout"
    finally:
        unblock.set()


def test_a_cancelled_call_cancels_its_async_tool_and_gives_its_place_back() -> None:
    entered, cancelled = threading.Event(), threading.Event()

    @tool(max_concurrency=1)
    async def linger(seconds: float) -> str:
        """Lingers."""
        entered.set()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "done"

    async def give_up() -> ToolResult:
        toolbox = Toolbox([linger])
        calling = asyncio.create_task(toolbox.call("linger", '{"seconds": 60}'))
        assert await asyncio.to_thread(entered.wait, 60)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        return await toolbox.call("linger", '{"seconds": 0}')

    assert asyncio.run(give_up()).content == "done"
    assert cancelled.wait(60)
