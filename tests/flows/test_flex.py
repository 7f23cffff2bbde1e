"""`stillhouse generate` in the tier flex, whose seller may have no room in it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

Shell = Callable[..., tuple[int, str]]
DEFAULT, FLEX = 4e-6, 2e-6
PRICES = {
    "m": {
        "input_cost_per_token": 0.0,
        "output_cost_per_token": DEFAULT,
        "input_cost_per_token_flex": 0.0,
        "output_cost_per_token_flex": FLEX,
    }
}
FULL = error(429, "Resource Unavailable", code="resource_unavailable")


def without_room(request: ReceivedRequest) -> Reply:
    """Answer in the tier that was asked for, in flex only where there is room; name it unless told not to."""
    said, tier = str(request.body["messages"]), request.body.get("service_tier")
    if tier == "flex" and "full" in said:
        return FULL
    return Reply(completion("an answer") | ({} if "unnamed" in said else {"service_tier": tier}))


@pytest.fixture
def teacher() -> Iterator[SimulatedProvider]:
    with SimulatedProvider(without_room) as provider:
        yield provider


@pytest.fixture
def generate(shell: Shell, teacher: SimulatedProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Run the command with settings, of prompts that find flex full, full and unnamed, and with room."""
    monkeypatch.setenv("FLEX_KEY", "any-key-of-some-length")
    (tmp_path / "prompts.txt").write_text("full one\n\nfull and unnamed\n\nroom")
    (tmp_path / "prices.json").write_text(json.dumps(PRICES))

    def run(*settings: str) -> tuple[int, str]:
        given = ("prompts.txt", "-o", "out.jsonl", "-m", "m", "--base-url", teacher.url, "--api-key-env", "FLEX_KEY")
        always = ("tracking.enabled=false", "teacher.prices_file=prices.json", "rollouts.max_tokens=50")
        return shell("generate", *given, *(word for setting in (*always, *settings) for word in ("--set", setting)))

    return run


def turns(folder: Path) -> dict[str, Any]:
    """Return the one turn of each prompt."""
    [file] = folder.glob("runs/artifacts/rollouts/*/trajectories.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["messages"][0]["content"]: row["turns"][0] for row in rows}


def test_a_turn_that_finds_no_room_goes_on_in_the_default_tier_and_is_billed_by_it(
    generate: Shell, teacher: SimulatedProvider, tmp_path: Path
) -> None:
    code, output = generate("teacher.service_tier=flex", "teacher.flex_fallback=true")
    assert code == 0, output
    told = {text: (turn["service_tier"], turn["cost_usd"]) for text, turn in turns(tmp_path).items()}
    assert told == {
        "full one": ("default", pytest.approx(5 * DEFAULT)),
        "full and unnamed": ("default", pytest.approx(5 * DEFAULT)),
        "room": ("flex", pytest.approx(5 * FLEX)),
    }
    asked = [body["service_tier"] for body in teacher.requests if body["messages"][0]["content"] == "full one"]
    assert asked == ["flex", "default"]


def test_without_the_setting_it_waits_for_room(generate: Shell, teacher: SimulatedProvider, tmp_path: Path) -> None:
    teacher.script = lambda request: FULL if request.attempt == 0 else Reply(completion("an answer"))
    code, output = generate("teacher.service_tier=flex")
    assert code == 0, output
    assert {body["service_tier"] for body in teacher.requests} == {"flex"}
    assert len(turns(tmp_path)) == 3


def test_a_budget_reserves_the_price_of_the_default_tier(generate: Shell, teacher: SimulatedProvider) -> None:
    one = 50 * DEFAULT
    code, output = generate("teacher.service_tier=flex", "teacher.flex_fallback=true", f"budget.max_usd={0.9 * one}")
    assert code != 0
    assert "budget.max_usd" in output
    assert not teacher.requests


def test_the_setting_is_refused_where_it_has_no_effect(generate: Shell, teacher: SimulatedProvider) -> None:
    for settings in (["teacher.flex_fallback=true"], ["teacher.service_tier=default", "teacher.flex_fallback=true"]):
        code, output = generate(*settings)
        assert code != 0
        assert "flex_fallback" in output
        assert "service_tier: flex" in output
    assert not teacher.requests
