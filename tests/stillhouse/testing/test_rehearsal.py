import subprocess
import sys
from pathlib import Path

import pytest

from stillhouse.errors import ConfigError, EndpointError
from stillhouse.project import create_project
from stillhouse.prompts.row import RowProblem
from stillhouse.testing import completion, rehearse
from stillhouse.types import JsonObject

ROW = {"prompt": "How many legs have 9 cats?", "metadata": {"expected_answer": "36"}}
CALL = completion(tool_calls=[("calculator", '{"expression": "9 * 4"}')])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    create_project(tmp_path, "sft")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tests_of_a_new_project_pass(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_tools_are_run_and_rewards_scored_as_in_a_run(project: Path) -> None:
    rehearsal = rehearse("config.yaml", ROW, [CALL, completion("36")])
    assert [message["role"] for message in rehearsal.trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert rehearsal.trajectory.messages[2]["content"] == "36"
    assert rehearsal.rewards.values == {"answered": 1.0, "right": 1.0, "sparing": 1.0}
    assert [len(body["messages"]) for body in rehearsal.requests] == [1, 3]
    assert rehearsal.requests[0]["tools"][0]["function"]["name"] == "calculator"


def test_answers_may_depend_on_the_request(project: Path) -> None:
    def answer(request: JsonObject) -> JsonObject:
        *_, last = request["messages"]
        return completion(last["content"]) if last["role"] == "tool" else CALL

    assert rehearse("config.yaml", ROW, answer).rewards.total == 1.0


def test_too_few_answers_are_an_error_that_counts_them(project: Path) -> None:
    with pytest.raises(EndpointError, match="completion 2"):
        rehearse("config.yaml", ROW, [CALL])


def test_row_that_is_no_prompt_and_config_that_is_not_there_are_told_apart(project: Path) -> None:
    with pytest.raises(RowProblem):
        rehearse("config.yaml", {"metadata": {}}, [])
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        rehearse("missing.yaml", ROW, [])
