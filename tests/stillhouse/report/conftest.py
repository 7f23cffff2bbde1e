"""Reports of three runs: a whole one, one that only evaluated, one whose dataset kept no row."""

import math
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from stillhouse.report import ReportData, SampleTrajectory, StageSummary
from stillhouse.types import Artifact, Message, ToolCall


def evaluation(name: str, right: float, low: float, high: float, teacher_kl: float | None) -> dict[str, Any]:
    return {
        "name": name,
        **{"num_prompts": 160, "num_trajectories": 160},
        **{"accuracy": right, "accuracy_low": low, "accuracy_high": high},
        "accuracy_by_tag": {"two_steps": min(1.0, right + 0.05), "three_steps": right - 0.05},
        "mean_completion_tokens": 71.4 - 20 * right,
        "mean_turns": 1.2 + right,
        "truncated_share": 0.2 * (1 - right),
        "valid_tool_call_share": None if name == "base" else 0.8 + 0.2 * right,
        "failed_share": 0.0,
        "completion_tokens": 9120,
        "teacher_kl": teacher_kl,
    }


EVALUATIONS = [
    evaluation("base", 0.1125, 0.072, 0.171, 1.847),
    evaluation("champion", 0.7313, 0.658, 0.794, 0.231),
    evaluation("sft", 0.7438, 0.671, 0.805, 0.214),
    evaluation("on_policy", 0.9125, 0.858, 0.947, 0.061),
    evaluation("teacher", 0.9813, 0.946, 0.994, None),
]


def compared(
    model: str, metric: str, tag: str | None, value: float, reference: float, half: float, p: float, num: int = 160
) -> dict[str, Any]:
    difference = value - reference
    return {
        "model": model,
        "metric": metric,
        "tag": tag,
        "num_prompts": num,
        "value": value,
        "reference": reference,
        "difference": difference,
        "low": difference - half,
        "high": difference + half,
        "p": p,
        "test": "mcnemar",
        "gain": -difference if metric in {"mean_completion_tokens", "truncated_share"} else difference,
    }


COMPARISON = [
    compared("base", "accuracy", None, 0.1125, 0.7313, 0.071, 2e-20),
    compared("base", "mean_completion_tokens", None, 69.2, 56.8, 3.2, 1e-9),
    compared("sft", "accuracy", None, 0.7438, 0.7313, 0.031, 0.6072),
    compared("sft", "accuracy", "two_steps", 0.79, 0.78, 0.05, 0.8, 80),
    compared("sft", "accuracy", "three_steps", 0.63, 0.68, 0.04, 0.031, 80),
    compared("sft", "mean_completion_tokens", None, 56.5, 56.8, 2.1, 0.77),
    compared("on_policy", "accuracy", None, 0.9125, 0.7313, 0.066, 4e-7),
    compared("on_policy", "accuracy", "two_steps", 0.96, 0.78, 0.09, 0.0003, 80),
    compared("on_policy", "accuracy", "three_steps", 0.86, 0.68, 0.1, 0.0009, 80),
    compared("on_policy", "mean_completion_tokens", None, 53.2, 56.8, 2.0, 0.0004),
]
DECISION = (
    "on_policy is the new champion. on_policy is better than champion: accuracy 91.2% against 73.1% on 160 prompts, "
    "+18.1 points (+11.5 to +24.7), p < 0.001, below 0.025."
)


def sft_rows() -> list[dict[str, Any]]:
    draw = random.Random(0)
    rows: list[dict[str, Any]] = []
    for step in range(1, 241):
        loss = 0.16 + 2.4 * math.exp(-step / 35) + draw.gauss(0, 0.05 + 0.1 * math.exp(-step / 40))
        row = {"step": step, "sft/nll": loss, "sft/learning_rate": 2e-3 * (1 - step / 240), "sft/tokens_per_s": 9120.0}
        if step % 40 == 0:
            row["sft/validation_nll"] = 0.2 + 2.3 * math.exp(-step / 36)
        rows.append(row)
    return rows


def on_policy_rows() -> list[dict[str, Any]]:
    draw = random.Random(1)
    return [
        {
            "step": step,
            "on_policy/teacher_kl": 0.05 + 0.2 * math.exp(-step / 18) + draw.gauss(0, 0.012),
            "on_policy/reward": min(1.0, max(0.0, 0.92 - 0.22 * math.exp(-step / 20) + draw.gauss(0, 0.035))),
            "on_policy/entropy": 0.31,
            "on_policy/valid_tool_call_share": 0.98,
        }
        for step in range(1, 61)
    ]


def sample(
    stage: str, verified: bool | None, arguments: str, result: str, answer: str, name: str = "calculator"
) -> SampleTrajectory:
    call: ToolCall = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
    messages: list[Message] = [
        {"role": "user", "content": STORY},
        {"role": "assistant", "content": None, "reasoning_content": "Three crates at 17.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": result},
        {"role": "assistant", "content": answer},
    ]
    return SampleTrajectory(messages=messages, stop_reason="answered", verified=verified, stage=stage)


STORY = "A shop sells apples at 17 coins a crate. Mara buys 3 crates and pays with 100 coins. How many coins are left?"


def stage(name: str, cached: bool, seconds: float, **tokens: Any) -> StageSummary:
    artifact = Artifact(uri=f"/store/{name}", fingerprint="3fa2b81c9d" * 6, num_rows=0)
    return StageSummary(name=name, artifact=artifact, cached=cached, seconds=seconds, facts=tokens)


@pytest.fixture
def full() -> ReportData:
    return ReportData(
        title="distill, demo.yaml",
        created_at=datetime(2026, 11, 20, 14, 5, tzinfo=UTC),
        config={"sft": {"learning_rate": 0.002}, "rollouts": {"temperature": 0.7, "system_prompt": None}},
        stages=[
            stage("prompts", True, 0.1),
            stage("rollouts", True, 0.3, prompt_tokens=184_220, completion_tokens=51_030, cost_usd=0.0812),
            stage("dataset", False, 1.9),
            stage("sft", False, 48.2),
            stage("on_policy", False, 131.7, completion_tokens=92_410),
            stage("evaluation", False, 22.6, prompt_tokens=71_300, completion_tokens=33_020, cost_usd=0.0204),
        ],
        evaluations=EVALUATIONS,
        comparison=COMPARISON,
        reference="champion",
        decision=DECISION,
        training={"sft": sft_rows(), "on_policy": on_policy_rows()},
        dataset={
            "funnel": [["rollouts", 640], ["finished", 633], ["right", 611], ["within_limits", 604], ["kept", 604]],
            "drop_reasons": {"wrong_answer": 22, "too_long": 7, "not_finished": 7},
            **{"kept": 604, "dropped": 36, "right": 611, "wrong": 22, "unverified": 0},
            **{"train": 573, "validation": 31, "supervised_tokens": 28_411},
        },
        trajectories=[
            sample("teacher", True, '{"expression": "100 - 3 * 17"}', "49", "Mara has **49** coins left."),
            sample("sft", False, '{"expression": "17 * ', '{"error": "no JSON"}', "It is 41.", "malformed_tool_call"),
            sample("on_policy", None, '{"expression": "100 - 51"}', "49", "49"),
        ],
        mlflow_url="http://127.0.0.1:5000/#/experiments/1/runs/0f3a",
        prefect_url="http://127.0.0.1:4200/runs/flow-run/77",
        commands={"Run again": "stillhouse distill configs/demo.yaml"},
    )


@pytest.fixture
def only_evaluation() -> ReportData:
    return ReportData(title="evaluate", evaluations=[EVALUATIONS[0], {"name": "teacher", "accuracy": None}])


@pytest.fixture
def no_kept_row() -> ReportData:
    return ReportData(
        title="distill, strict.yaml",
        failure="dataset: no row is kept of 40 rollouts (finished 38, right 0). Loosen the filters in `dataset:`",
        stages=[stage("rollouts", False, 3725.0, prompt_tokens=9000, completion_tokens=4000)],
        dataset={"funnel": [["rollouts", 40], ["finished", 38], ["right", 0], ["kept", 0]], "kept": 0, "dropped": 40},
    )


@pytest.fixture
def words() -> Callable[[str | None], list[str]]:
    """Return the texts of a picture, each whole."""

    def read(svg: str | None) -> list[str]:
        assert svg is not None
        return re.findall(r"<text[^>]*>([^<]*)</text>", svg)

    return read
