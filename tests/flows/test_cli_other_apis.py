"""`stillhouse generate` with tools, from OpenAI's Responses API and Anthropic's Messages."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.fake_messages import FakeMessages
from tests.fake_responses import FakeResponses
from tests.flows.test_cli_generate import TOOLS, rows_of
from tests.provider import ReceivedRequest, Reply, SimulatedProvider

CITIES = ("Rome", "Oslo", "Lima", "Bonn", "Kyiv", "Nice")
MODELS = {"gpt-5-pro": [], "claude-opus-5": ["--set", "teacher.api=messages"]}


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str) -> FakeResponses | FakeMessages:
    """A model that looks up the city's warmth, and says it."""

    def said(items: list[dict[str, Any]]) -> str:
        last = items[-1]
        return str(last.get("output") or last.get("content"))

    def responses(items: list[dict[str, Any]]) -> str | list[tuple[str, dict[str, Any]]]:
        text = said(items)
        return f"It is {text}." if "degrees" in text else [("warmth", {"city": text.rstrip("?").split()[-1]})]

    def messages(turns: list[dict[str, Any]]) -> str | list[tuple[str, dict[str, Any]]]:
        block = turns[-1]["content"][-1]
        return responses([{"content": block.get("text") or block["content"]}])

    made = FakeResponses(responses) if name == "gpt-5-pro" else FakeMessages(messages)
    return made


@pytest.fixture
def teacher(model: FakeResponses | FakeMessages) -> Iterator[SimulatedProvider]:
    with SimulatedProvider(model) as provider:
        yield provider


@pytest.fixture
def arguments(name: str, teacher: SimulatedProvider, tmp_path: Path) -> list[str]:
    (tmp_path / "prompts.txt").write_text("\n\n".join(f"How warm is it in {city}?" for city in CITIES))
    (tmp_path / "tools.py").write_text(TOOLS)
    given = ["prompts.txt", "-o", "out.jsonl", "-t", "tools.py", "-m", name, "--base-url", teacher.url]
    return [
        "generate",
        *given,
        "--api-key-env",
        "STILLHOUSE_TEST_KEY",
        "--set",
        "tracking.enabled=false",
        *MODELS[name],
    ]


def test_a_model_of_another_api_answers_with_tools_and_what_it_hides_reaches_no_dataset(
    shell: Any, arguments: list[str], teacher: SimulatedProvider, tmp_path: Path
) -> None:
    code, output = shell(*arguments)
    assert code == 0, output
    rows = rows_of(tmp_path / "out.jsonl")
    assert {row["messages"][-1]["content"] for row in rows} == {"It is 4 degrees."}
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant", "tool", "assistant"]
    [train] = tmp_path.glob("runs/artifacts/dataset/*/train.parquet")
    kept = [json.loads(message) for message in pq.read_table(train)["messages"][0].as_py()]
    assert kept[1]["reasoning_content"].startswith("weighed it")
    text = json.dumps([pq.read_table(path).to_pylist() for path in tmp_path.rglob("*.parquet")], default=str)
    text += (tmp_path / "out.jsonl").read_text()
    assert not any(hidden in text for hidden in ("gAAAA", "signature\\", "redacted", "sent_back", "encrypted"))
    num_asked = len(teacher.ledger)
    code, output = shell(*arguments)
    assert code == 0, output
    assert len(teacher.ledger) == num_asked


@pytest.mark.slow
def test_a_run_that_is_killed_amid_its_tool_loops_pays_for_nothing_twice(
    arguments: list[str], model: Any, teacher: SimulatedProvider, tmp_path: Path
) -> None:
    num_answered = 0

    def script(request: ReceivedRequest) -> Reply:
        nonlocal num_answered
        reply = model(request)
        if reply.status == 200:
            num_answered += 1
        # Those in flight when the run is killed are never answered.
        return reply if num_answered <= 5 or reply.status != 200 else Reply({}, fault="hang")

    teacher.script = script
    command = [str(Path(sys.executable).parent / "stillhouse"), *arguments, "-c", "2", "--set", "runtime.store=runs"]
    log = (tmp_path / "log.txt").open("wb")
    with log, subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True) as process:
        deadline = time.monotonic() + 240
        while num_answered < 7:
            assert process.poll() is None, (tmp_path / "log.txt").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    teacher.script = model
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(rows_of(tmp_path / "out.jsonl")) == len(CITIES)
    assert len(teacher.billed) == 2 * len(CITIES)
    assert set(teacher.billed.values()) == {1}
    assert teacher.requests[-1]["model"] == arguments[arguments.index("-m") + 1]
