"""Commands of the README with models that refuse what they do not take."""

import json
from pathlib import Path
from typing import Any

import pytest

from stillhouse.store.records import read_trajectories
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion
from tests.strict_openai import strict_openai

TOOLS = '''
from stillhouse.tools import tool


@tool
def warmth(city: str) -> str:
    """Tells how warm a city is.

    Args:
        city: its name.
    """
    return f"{len(city)} degrees"
'''


def answered(request: ReceivedRequest) -> Reply:
    is_first = request.body["messages"][-1]["role"] == "user"
    asked = [("warmth", json.dumps({"city": "Rome"}))] if request.body.get("tools") and is_first else []
    return Reply(completion(None if asked else "4 degrees", tool_calls=asked))


def turns_in(store: Path) -> list[Any]:
    (path,) = store.glob("**/trajectories.jsonl*")
    return [turn for trajectory in read_trajectories(path) for turn in trajectory.turns]


@pytest.mark.parametrize(
    ("model", "not_taken"),
    [
        ("gpt-5-nano", {"temperature": None}),
        pytest.param("gpt-5-mini", {"temperature": None}, marks=pytest.mark.slow),
        pytest.param("gpt-5.2", None, marks=pytest.mark.slow),
    ],
)
def test_a_file_of_prompts_is_answered_by_a_model_that_takes_no_temperature(
    shell, tmp_path: Path, model: str, not_taken: dict[str, Any] | None
) -> None:
    (tmp_path / "prompts.txt").write_text("How warm is Rome?\nHow warm is Oslo?\n")
    (tmp_path / "tools.py").write_text(TOOLS)
    with SimulatedProvider(strict_openai(answered)) as provider:
        args = ["generate", "prompts.txt", "-m", model, "-t", "tools.py", "-o", "rows.jsonl"]
        args += ["--base-url", provider.url, "--api-key-env", "STILLHOUSE_TEST_KEY", "--set", "tracking.enabled=false"]
        code, output = shell(*args)
        assert code == 0, output
        asked = [one for one in provider.ledger if one.status == 200]
        assert len(asked) == 4
        rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
        assert [row["messages"][-1]["content"] for row in rows] == ["4 degrees"] * 2
        assert [turn.not_taken for turn in turns_in(tmp_path / "runs")] == [not_taken] * 4
        num_asked = len(provider.ledger)
        assert shell(*args)[0] == 0
        assert len(provider.ledger) == num_asked


def test_a_model_of_another_api_ends_the_run_at_once_with_the_setting_to_change(shell, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("".join(f"What is {number}?\n" for number in range(30)))
    with SimulatedProvider(strict_openai(answered)) as provider:
        code, output = shell(
            *("generate", "prompts.txt", "-m", "internal-pro", "--base-url", provider.url),
            *("--api-key-env", "STILLHOUSE_TEST_KEY", "--set", "tracking.enabled=false"),
        )
    assert code != 0
    assert "Change teacher.api to responses" in " ".join(output.split())
