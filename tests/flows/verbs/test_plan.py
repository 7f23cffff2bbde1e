"""`stillhouse plan`: what a config costs, from a few rollouts or none, and how far the budget goes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

Shell = Callable[..., tuple[int, str]]
Plan = Callable[..., tuple[dict[str, Any], list[str]]]
PRICE = {"prompt": 1.0, "completion": 4.0}
NUM_PROMPTS = 60
GRADES = json.dumps({"explanation": "It says what was asked for.", "clarity": 4})


class Teller:
    """Answers at random lengths: half of those with tools after a call, and a judge's questions with grades."""

    def __init__(self) -> None:
        self.usd: list[float] = []
        """Cost of each answer."""

    def __call__(self, request: ReceivedRequest) -> Reply:
        rng, asked = Random(request.digest), request.body
        if "response_format" in asked:
            body = completion(GRADES, completion_tokens=20)
        elif "tools" in asked and request.num_turns == 0 and rng.random() < 0.5:
            body = completion(tool_calls=[("calculator", '{"expression": "1 + 1"}')], completion_tokens=10)
        else:
            body = completion("some words", completion_tokens=min(round(rng.lognormvariate(4.0, 0.5)), 500))
        usage = body["usage"]
        usage["prompt_tokens"] = len(request.raw) // 4
        self.usd.append((usage["prompt_tokens"] * 1.0 + usage["completion_tokens"] * 4.0) / 1e6)
        return Reply(body)


@pytest.fixture
def provider() -> Iterator[SimulatedProvider]:
    with SimulatedProvider(Teller()) as provider:
        yield provider


@pytest.fixture
def body(tmp_path: Path, provider: SimulatedProvider) -> dict[str, Any]:
    rng = Random(1)
    prompts = [{"prompt": f"{number}: " + "tell me more " * rng.randint(1, 40)} for number in range(NUM_PROMPTS)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    return {
        "prompts": {"source": "prompts.jsonl", "held_out_fraction": 0.0},
        "teacher": {"model": "simulated", "base_url": provider.url, "usd_per_million_tokens": PRICE},
        "rollouts": {"max_tokens": 500},
        "dataset": {"labels": {"render": False}, "validation_fraction": 0.0},
        "evaluation": {"enabled": False},
        "tracking": {"enabled": False},
        "runtime": {"api_key_env": "STILLHOUSE_TEST_KEY"},
    }


@pytest.fixture
def plan(shell: Shell, tmp_path: Path, body: dict[str, Any]) -> Plan:
    """Return the stages by name, and the summary, of a plan of `body`."""

    def run(*options: str) -> tuple[dict[str, Any], list[str]]:
        # JSON is YAML.
        (tmp_path / "config.yaml").write_text(json.dumps(body))
        code, output = shell("plan", "config.yaml", "--json", *options)
        assert code == 0, output
        told = json.loads(output[output.index("{\n") : output.rindex("}\n") + 1])
        return {stage["stage"]: stage for stage in told["stages"]}, told["summary"]

    return run


def test_three_rollouts_foretell_the_cost_and_the_run_finds_them(
    plan: Plan, shell: Shell, provider: SimulatedProvider
) -> None:
    stages, summary = plan()
    # The first question, and three rollouts.
    assert len(provider.ledger) == 4
    rollouts = stages["rollouts"]
    assert (rollouts["count"], rollouts["num_paid"]) == (NUM_PROMPTS - 3, 3)
    assert plan()[0] == stages
    assert len(provider.ledger) == 4
    # One short, one middling and one long prompt.
    lengths = sorted(len(request["messages"][0]["content"]) for request in provider.requests[1:])
    assert lengths[0] < 200 < lengths[1] < 350 < lengths[2]

    code, output = shell("generate", "config.yaml")
    assert code == 0, output
    assert len(provider.ledger) == NUM_PROMPTS + 1
    assert set(provider.billed.values()) == {1}
    assert rollouts["usd"]["low"] <= sum(provider.script.usd[4:]) <= rollouts["usd"]["high"]  # type: ignore[attr-defined]
    # The first lines of the run say the same.
    assert all(f"plan     {line}" in output for line in summary)
    done = plan()[0]["rollouts"]
    assert (done["count"], done["usd"]["high"]) == (0, 0.0)
    code, output = shell("generate", "config.yaml")
    assert (code, len(provider.ledger)) == (0, NUM_PROMPTS + 1)
    assert "plan     " not in output


def test_no_rollouts_send_nothing_make_nothing_and_give_a_wide_range(
    plan: Plan, tmp_path: Path, provider: SimulatedProvider
) -> None:
    stages, summary = plan("--rollouts", "0")
    assert provider.ledger == []
    assert not (tmp_path / "runs").exists()
    rollouts = stages["rollouts"]
    assert rollouts["requests"] == {"low": NUM_PROMPTS, "likely": NUM_PROMPTS, "high": NUM_PROMPTS}
    assert rollouts["completion_tokens"] == {"low": NUM_PROMPTS, "likely": None, "high": NUM_PROMPTS * 500}
    assert rollouts["usd"]["high"] == pytest.approx(rollouts["worst_usd"])
    assert summary[0].startswith("60 requests, ")


def test_a_cap_says_after_how_many_prompts_it_ends_the_run(plan: Plan, body: dict[str, Any]) -> None:
    body["rollouts"]["num_samples"] = 2
    usd = plan()[0]["rollouts"]["usd"]["likely"]
    whole = usd * 120 / 117
    body["budget"] = {"max_usd": whole / 2, "max_requests": 1000}
    stages, summary = plan()
    assert stages["rollouts"]["count"] == 58.5
    assert "(budget.max_usd) ends after about 30 of 60 prompts, at the earliest after " in summary[-2]
    assert summary[-1] == "The cap of 1,000 (budget.max_requests) holds all of it."
    body["budget"] = {"max_usd": whole * 1.1}
    assert "likely holds all of it; at the earliest it ends after " in plan()[1][-1]


def test_an_unknown_price_is_said_and_is_never_nothing(plan: Plan, shell: Shell, body: dict[str, Any]) -> None:
    del body["teacher"]["usd_per_million_tokens"]
    stages, summary = plan()
    assert (stages["rollouts"]["usd"], stages["rollouts"]["worst_usd"]) == (None, None)
    assert summary[0].endswith("tokens, unknown cost.")
    assert summary[1] == "The price of rollouts is unknown and left out."
    code, output = shell("plan", "config.yaml")
    assert code == 0
    assert output.count("unknown") == 4
    assert "$" not in output
    body["budget"] = {"max_usd": 1}
    assert "With budget.max_usd the run will stop before rollouts" in plan("-n", "0")[1][-1]
    assert shell("plan", "config.yaml", "-n", "5")[0] == 2


def test_a_model_that_is_served_here_costs_nothing_and_is_not_asked(plan: Plan, body: dict[str, Any]) -> None:
    body["teacher"] = {"model": "embedded:teacher"}
    stages, summary = plan()
    assert stages["rollouts"]["is_local"]
    assert stages["rollouts"]["usd"]["high"] == 0.0
    assert summary[-1] == "Rollouts cost nothing, as this machine serves the model."


def test_tools_judge_and_evaluation_are_counted_and_a_run_stays_in_their_ranges(
    plan: Plan, shell: Shell, provider: SimulatedProvider, body: dict[str, Any]
) -> None:
    body["prompts"]["held_out_fraction"] = 0.2
    body["tools"] = {"builtin": ["calculator"]}
    rubric = [{"name": "clarity", "question": "Is it clear?"}]
    judge = {"model": "judge", "base_url": provider.url, "usd_per_million_tokens": PRICE}
    body["dataset"]["judge"] = {"enabled": True, "model": judge, "rubric": rubric}
    body["evaluation"] = {"enabled": True, "max_tokens": 500}
    stages, _ = plan("-n", "10")
    rollouts, judgements, evaluation = (stages[name] for name in ("rollouts", "judge", "evaluation"))
    num_train = rollouts["count"] + 10
    assert (judgements["count"], evaluation["count"]) == (num_train, NUM_PROMPTS - num_train)
    assert rollouts["requests"]["likely"] > 1.2 * rollouts["count"]
    assert judgements["worst_usd"] > 5 * judgements["usd"]["low"] > 0

    num_before = len(provider.ledger)
    code, output = shell("generate", "config.yaml")
    assert code == 0, output
    asked = list(zip(provider.requests, provider.script.usd, strict=True))[num_before:]  # type: ignore[attr-defined]
    for stage, model in ((rollouts, "simulated"), (judgements, "judge")):
        costs = [usd for request, usd in asked if request["model"] == model]
        assert stage["requests"]["low"] <= len(costs) <= stage["requests"]["high"]
        assert stage["usd"]["low"] <= sum(costs) <= stage["usd"]["high"]
    stages, _ = plan("-n", "0")
    assert (stages["rollouts"]["count"], stages["judge"]["count"]) == (0, 0)
    assert stages["judge"]["num_paid"] == num_train
    assert stages["evaluation"]["count"] == NUM_PROMPTS - num_train


def test_a_target_of_rows_makes_its_rollouts_a_range(plan: Plan, body: dict[str, Any]) -> None:
    body["rollouts"]["num_samples"] = 4
    body["dataset"]["selection"] = {"target_rows": 20, "max_candidates": 100}
    rollouts = plan("-n", "0")[0]["rollouts"]
    assert rollouts["requests"] == {"low": 20, "likely": None, "high": 100}


def test_served_teachers_score_every_trajectory_of_every_batch(plan: Plan, body: dict[str, Any]) -> None:
    teacher = {"name": "big", "kind": "vllm", "model": "big", "base_url": "http://127.0.0.1:9/v1"}
    body["on_policy"] = {"enabled": True, "num_steps": 10, "prompts_per_step": 8, "group_size": 2}
    body["on_policy"] |= {"teachers": [teacher], "max_tokens": 100}
    stages, summary = plan("-n", "0")
    scoring = stages["on-policy scoring"]
    assert (scoring["count"], scoring["usd"]) == (160, None)
    assert 160 * 100 < scoring["prompt_tokens"]["high"] < 160 * (100 + 600)
    body["sft"] = {"loss": "kl", "teachers": [teacher]}
    stages, summary = plan("-n", "0")
    assert stages["sft scoring"]["count"] == NUM_PROMPTS
    assert "The price of sft scoring and on-policy scoring is unknown and left out." in summary


def test_a_teacher_that_refuses_fails_the_plan_with_its_reason(
    shell: Shell, plan: Plan, provider: SimulatedProvider
) -> None:
    plan("-n", "0")
    provider.script = lambda request: error(400, "no such model")
    code, output = shell("plan", "config.yaml")
    assert code == 1
    assert "no such model" in output


def test_a_plan_without_rollouts_imports_nothing_heavy(plan: Plan, tmp_path: Path) -> None:
    plan("-n", "0")
    program = """
import sys
from flows.cli import run_command
sys.argv = ["stillhouse", "plan", "config.yaml", "--rollouts", "0"]
try:
    run_command()
finally:
    heavy = {"torch", "transformers", "prefect", "mlflow", "openai", "pyarrow", "pandas"} & set(sys.modules)
    assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "60 requests" in done.stdout


def test_what_the_trainings_take_of_gpus_is_told_before_a_teacher_is_asked(
    body: dict[str, Any], plan: Plan, shell: Shell, provider: SimulatedProvider
) -> None:
    body["sft"], body["student"] = {"enabled": True}, {"model": "embedded:student", "max_length": 512}
    _, told = plan("--devices", "1x8GiB")
    assert any(line.startswith("sft: ") and "of 8.0 GiB on GPU 0" in line for line in told)
    asked = len(provider.requests)
    several = ("--set", "runtime.launcher=torchrun", "--set", "runtime.num_processes=2")
    code, output = shell("plan", "config.yaml", "--devices", "1x8GiB", *several)
    assert (code, len(provider.requests)) == (2, asked)
    assert "error[memory]" in output
