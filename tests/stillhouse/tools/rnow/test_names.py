import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.testing import completion, rehearse
from stillhouse.tools import RewardScores, RewardSet, Toolbox
from stillhouse.tools.context import ToolContext
from stillhouse.tools.rnow.names import get_response, llm_judge
from stillhouse.types import PromptMetadata, StopReason, Trajectory
from tests.provider import Reply, SimulatedProvider

TOOLS = '''
import os

from rnow.core import ToolArgs
from rnow.core.tool import tool


@tool
def sql(args: ToolArgs, query: str) -> str:
    """Execute a query on the entry's database."""
    return args.metadata["db_id"] + ": " + query


@tool
def unannotated(args, limit: int = 5) -> dict:
    """A dict by its hint, a list in truth."""
    return [args.metadata["db_id"], limit]


@tool(sandbox=True, timeout=20)
def where(name: str) -> str:
    """Where it runs."""
    return f"{name} {os.path.basename(os.environ['HOME'])}"
'''
REWARDS = '''
from rnow.core import RewardArgs, get_response, llm_judge, reward
from rnow.models import RewardArgs as SameArgs

assert SameArgs is RewardArgs


@reward(precondition=True)
def format(args: RewardArgs, messages: list) -> float:
    """Must use a tool to get any reward."""
    return 1.0 if any(call for m in messages for call in m.get("tool_calls", [])) else 0.0


@reward
def accuracy(args: RewardArgs, messages: list) -> float:
    return 1.0 if args.metadata["expected_answer"] == args.metadata["answer"] in get_response(messages) else 0.0


@reward(timeout=30)
async def topical(args: RewardArgs, messages: list) -> float:
    assert args.secrets["JUDGE_KEY"] == "k" and all(isinstance(m["content"], str) for m in messages)
    return 0.5 if args.variables.get("topic") in get_response(messages) else 0.0


@reward(sandbox=True)
async def apart(args: RewardArgs, messages: list) -> float:
    return args.metadata["share"]
'''
CALL = {"id": "1", "type": "function", "function": {"name": "sql", "arguments": "{}"}}
ANSWERED = [
    {"role": "user", "content": "How many cats?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "9"},
    {"role": "assistant", "content": "9 cats"},
]
ROW = {"rewards": ["format", "accuracy", "topical"], "variables": {"topic": "cats"}, "share": 0.25}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    def to(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return to


def score(file: str, metadata: dict[str, Any], messages: list[Any] = ANSWERED) -> RewardScores:
    trajectory = Trajectory("key", "prompt", 0, messages, [], [], StopReason.ANSWERED, "m")

    async def run() -> RewardScores:
        async with RewardSet.from_config(ToolsConfig(rewards_file=file)) as rewards:
            return await rewards.score(trajectory, PromptMetadata("prompt", "9", None, "exact", metadata))

    return asyncio.run(run())


@pytest.fixture
def rewards(write: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JUDGE_KEY", "k")
    return write("rewards.py", REWARDS)


def test_the_rewards_that_a_row_names_are_added_up_with_the_preconditions(rewards: str) -> None:
    assert score(rewards, ROW) == RewardScores(2.5, {"format": 1.0, "accuracy": 1.0, "topical": 0.5}, {})
    assert score(rewards, {**ROW, "rewards": ["accuracy"]}) == RewardScores(1.0, {"accuracy": 1.0}, {})
    assert score(rewards, ROW, [ANSWERED[0], ANSWERED[-1]]) == RewardScores(0.0, {"format": 0.0}, {})


def test_a_name_without_a_function_leaves_no_total_and_is_reported(rewards: str) -> None:
    scored = score(rewards, {**ROW, "rewards": ["accuracy", "style"]})
    assert (scored.total, scored.values) == (None, {"style": None, "accuracy": 1.0})
    assert "names it in `rewards`, and there are: format, accuracy, topical, apart" in scored.errors["style"]


@pytest.mark.usefixtures("jail")
def test_sandboxed_rewards_and_tools_see_the_names_too(rewards: str, write: Callable[[str, str], str]) -> None:
    assert score(rewards, {**ROW, "rewards": ["apart"]}).total == 0.25
    toolbox = Toolbox.from_config(ToolsConfig(file=write("tools.py", TOOLS)))
    assert asyncio.run(toolbox.call("where", '{"name": "here"}')).error_kind is None


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_tools_take_the_rows_metadata_first_and_do_not_show_it(write: Callable[[str, str], str]) -> None:
    toolbox = Toolbox.from_config(ToolsConfig(file=write("tools.py", TOOLS)))
    shown = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in toolbox.schemas()}
    assert {name: list(properties) for name, properties in shown.items()} == {
        "sql": ["query"],
        "unannotated": ["limit"],
        "where": ["name"],
    }
    context = ToolContext(metadata={"db_id": "pets"})
    assert asyncio.run(toolbox.call("sql", '{"query": "select"}', context)).content == "pets: select"
    assert asyncio.run(toolbox.call("unannotated", '{"limit": "3"}', context)).content == '["pets",3]'


def test_a_project_is_rehearsed_unchanged(rewards: str, write: Callable[[str, str], str], tmp_path: Path) -> None:
    tools = write("tools.py", TOOLS)
    config = write("config.yaml", f"tools: {{file: {tools}, rewards_file: {rewards}}}\n")
    row = {"messages": [ANSWERED[0]], "metadata": {"expected_answer": "9", "db_id": "pets"}, **ROW}
    calls = [completion(tool_calls=[("sql", '{"query": "count"}')]), completion("9 cats")]
    rehearsal = rehearse(config, row, calls)
    assert rehearsal.trajectory.messages[2]["content"] == "pets: count"
    assert rehearsal.rewards == RewardScores(2.5, {"format": 1.0, "accuracy": 1.0, "topical": 0.5}, {})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from rnow.core import REWARD_REGISTRY", "'REWARD_REGISTRY'"),
        ("import rnow.cli.main", r"'rnow\.cli'"),
    ],
)
def test_what_is_not_offered_is_named_with_what_is(write: Callable[[str, str], str], line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"line 2: .*{message}.*RewardArgs, ToolArgs, get_response"):
        RewardSet.from_config(ToolsConfig(rewards_file=write("rewards.py", f"import os\n{line}\n")))


def test_the_package_itself_is_left_alone_and_named(
    tmp_path: Path, write: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed" / "rnow").mkdir(parents=True)
    write("installed/rnow/__init__.py", "")
    write("installed/rnow/core.py", "def reward(function):\n    return function\n")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    for name in [name for name in sys.modules if name.split(".")[0] == "rnow"]:
        monkeypatch.delitem(sys.modules, name)
    file = write("rewards.py", "from rnow.core import reward\n@reward\ndef f(args, messages): ...\n")
    with pytest.raises(ConfigError, match="rnow"):
        RewardSet.from_config(ToolsConfig(rewards_file=file))
    for name in ("rnow", "rnow.core"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("content", "response"),
    [
        ("4", "4"),
        (None, ""),
        ([{"type": "thinking", "thinking": "2 + 2"}, {"type": "text", "text": "4"}], "4"),
        ([{"type": "thinking", "thinking": "2 + 2"}], "2 + 2"),
    ],
)
def test_the_response_is_the_text_of_the_last_assistant_message(content: object, response: str) -> None:
    messages = [{"role": "assistant", "content": "first"}, {"role": "assistant", "content": content}]
    assert get_response([*messages, {"role": "tool", "content": "9"}]) == response


def responses(text: str) -> dict[str, Any]:
    return {"output": [{"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": text}]}]}


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (responses('{"score": 1}'), 1.0),
        (responses('{"grade": 1}'), None),
        ({"output": [], "incomplete_details": {"reason": "max_output_tokens"}}, None),
        (completion('{"score": 0.5}'), 0.5),
    ],
)
def test_a_judge_gives_its_score_or_an_error(
    answer: dict[str, Any], score: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("LLM_JUDGE_API_KEY", raising=False)
    bodies = []

    def script(request: Any) -> Reply:
        bodies.append(json.loads(request.raw))
        assert request.authorization == "Bearer k"
        return Reply(answer)

    with SimulatedProvider(script) as provider:
        judging = llm_judge("Good?", api_url=f"{provider.url}/chat/completions", secrets={"LLM_JUDGE_API_KEY": "k"})
        if score is None:
            with pytest.raises(ValueError, match="score"):
                asyncio.run(judging)
        else:
            assert asyncio.run(judging) == score
    assert bodies[0]["input"] == [{"role": "user", "content": "Good?"}]
    assert bodies[0]["text"]["format"]["schema"]["properties"]["score"]["enum"] == [0, 1]
    assert "temperature" not in bodies[0]
