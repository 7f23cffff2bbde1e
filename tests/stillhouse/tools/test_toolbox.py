import asyncio
from typing import Any

import pytest

from stillhouse.errors import ConfigError
from stillhouse.tools import RolloutScope, Tool, ToolArgs, Toolbox, ToolContext, tool
from stillhouse.tools.arguments import reader_of_schema
from stillhouse.tools.calculator import calculator as builtin_calculator
from stillhouse.types import JsonObject, ToolSchema


@tool
def add(left: int, right: int = 1) -> int:
    """Sum of two numbers."""
    return left + right


@tool
def negate(number: int) -> int:
    """The number with the other sign."""
    return -number


TOOLBOX = Toolbox([add, negate, builtin_calculator])


def test_a_selection_offers_its_tools_alone_and_names_only_configured_ones() -> None:
    selected = TOOLBOX.select(["negate", "add"])
    assert [schema["function"]["name"] for schema in selected.schemas()] == ["negate", "add"]
    assert asyncio.run(selected.call("calculator", "{}")).error_kind == "unknown_tool"
    assert TOOLBOX.select([]).schemas() == []
    with pytest.raises(ConfigError, match="browse"):
        TOOLBOX.select(["browse"])


def test_two_tools_of_one_name_are_refused() -> None:
    @tool
    def calculator() -> str:
        """Another."""
        return ""

    with pytest.raises(ConfigError, match="calculator"):
        Toolbox([builtin_calculator, calculator])


class Session:
    """A resource of a rollout that counts its calls, and is told when it ends."""

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
    assert asyncio.run(toolbox.call("count", '{"by": 1}')).content == "1"
    assert ended == [4, 4, 1]
    assert asyncio.run(toolbox.call("count", "{}")).error_kind == "invalid_arguments"


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
    assert asyncio.run(toolbox.call("whose", '{"suffix": "!"}', context)).content == "Ann! key 3 {'NAMED': 'n'}"
    assert asyncio.run(toolbox.call("whose", '{"suffix": "!", "args": {}}', context)).error_kind == "invalid_arguments"
    assert toolbox.takes_context
    assert not toolbox.select(["add", "count"]).takes_context


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
