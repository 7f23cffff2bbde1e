"""The examination of pairs whose teacher is behind an endpoint, and what it asks again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import DistillConfig, OnPolicyConfig, load_config, parse_config
from stillhouse.embedded import embedded_path
from stillhouse.store import digest
from stillhouse.training.pair.finding import PairFinding
from tasks.pair.case import PairCase
from tasks.pair.stage import examine_config, may_take_minutes, training_finding
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

KEY = "STILLHOUSE_TEST_KEY"
ROWS = [json.loads(line) for line in embedded_path("prompts.jsonl").read_text().splitlines()[:12]]
NewConfig = Callable[..., DistillConfig]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedProvider]:
    """Know all answers, and reasons before it gives them."""
    answers = {row["prompt"]: row["metadata"]["expected_answer"] for row in ROWS}

    def answer(request: ReceivedRequest) -> Reply:
        question = next(m["content"] for m in request.body["messages"] if m["role"] == "user")
        return Reply(completion(f"<think>I know that.</think>{answers[question]}"))

    monkeypatch.setenv(KEY, "secret")
    with SimulatedProvider(answer) as running:
        yield running


@pytest.fixture
def new_config(tmp_path: Path) -> NewConfig:
    def make(url: str, *overrides: str) -> DistillConfig:
        source = tmp_path / "prompts.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        body: dict[str, Any] = {
            "prompts": {"source": str(source), "held_out_fraction": 0.5, "verifier": "numeric"},
            "teacher": {"model": "simulated", "base_url": url},
            "tools": {"builtin": ["calculator"]},
            "student": {"parameters": "full", "dtype": "float32", "max_length": 512},
            "evaluation": {"max_tokens": 48, "max_turns": 6},
            "runtime": {"store": str(tmp_path / "runs"), "api_key_env": KEY, "num_threads": 1, "device": "cpu"},
        }
        return parse_config(body, origin="test", overrides=overrides)

    return make


def by_name(findings: list[PairFinding]) -> dict[str, PairFinding]:
    return {finding.name: finding for finding in findings}


def test_a_chat_teacher_is_compared_and_asked_once(provider: SimulatedProvider, new_config: NewConfig) -> None:
    config = new_config(provider.url)
    findings = by_name(examine_config(config, 4))
    assert "accuracy 100% against" in findings["teacher: better"].detail
    assert "student: ends" not in findings, "nothing is sampled for on-policy distillation"
    num_asked = len(provider.requests)
    assert examine_config(config, 4) == list(findings.values())
    assert len(provider.requests) == num_asked


@pytest.mark.slow
def test_an_endpoint_that_does_not_answer_leaves_the_question_open(new_config: NewConfig) -> None:
    config = new_config("http://127.0.0.1:9/v1", "runtime.max_attempts=1")
    findings = by_name(examine_config(config, 2))
    assert findings["teacher: better"].level == "unknown"
    assert "could not be sampled" in findings["teacher: better"].detail


def test_rows_of_others_alone_have_no_teacher_to_examine(new_config: NewConfig) -> None:
    config = new_config("http://127.0.0.1:9/v1", "sft.dataset_weight=0", "sft.sources=[{path: rows.jsonl}]")
    [finding] = examine_config(config, 2)
    assert (finding.level, "no teacher takes part" in finding.detail) == ("unknown", True)


def test_only_the_teachers_that_score_are_asked(new_config: NewConfig) -> None:
    url = "http://127.0.0.1:9/v1"
    assert PairCase.of(new_config(url)).scorers == ()
    on = "on_policy.enabled=true"
    rewarded = ("on_policy.algorithm=rewards", "on_policy.group_size=4")
    assert PairCase.of(new_config(url, *rewarded, on)).scorers == ()
    default = PairCase.of(new_config(url, "on_policy.teacher=embedded:teacher", on))
    assert [teacher.model for teacher in default.scorers] == ["embedded:teacher"]


def test_the_teachers_that_change_with_the_student_or_do_not_score_are_left_out(new_config: NewConfig) -> None:
    far = {"kind": "vllm", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    teachers = [
        {"name": "near", "model": "embedded:teacher"},
        {"name": "few", **far, "top_k": 5},
        {"name": "far", **far, "routes": ["a"]},
        {"name": "echo", **far, "kind": "echo", "routes": ["b"]},
        {"name": "mean", "kind": "ema", "routes": ["c"]},
        {"name": "mute", **far, "kl_coef": 0.0, "routes": ["d"]},
    ]
    changes = {"teachers": teachers, "divergence": [], "group_size": 4, "num_steps": 3, "trainer": {"ema_decay": 0.9}}
    training = OnPolicyConfig.model_validate({"enabled": True, **changes})
    config = new_config("http://127.0.0.1:9/v1", "on_policy.enabled=true", "on_policy.teacher=embedded:teacher")
    settings = PairCase.of(config).model_copy(update={"training": training}).settings
    assert [(one.name, one.top_k) for one in settings.teachers] == [
        ("near", 20), ("few", 5), ("far", 20), ("echo", None),
    ]  # fmt: skip
    assert settings.group_size == 1
    # It travels to the training process as JSON.
    assert OnPolicyConfig.model_validate_json(settings.model_dump_json()) == settings


def test_the_training_costs_what_its_trajectories_cost_here() -> None:
    config = OnPolicyConfig(num_steps=10, prompts_per_step=6)
    counts = {"rows": 10, "sampled_tokens": 200, "input_tokens": 600}
    detail = training_finding(config, {**counts, "sampling_s": 2.0, "scoring_s": 1.0, "forward_s": 0.5}).detail
    assert "about 27 s at this speed: sampling 12 s, scoring 6 s, training 9 s" in detail
    assert "60 trajectories of 20 sampled tokens, 3,600 tokens" in detail


def test_only_a_training_that_may_take_minutes_is_examined(tmp_path: Path) -> None:
    little = OnPolicyConfig(num_steps=60, prompts_per_step=32, max_tokens=48, max_turns=6)
    much = little.model_copy(update={"num_steps": 2000})
    models = ("embedded:student", ["embedded:teacher"])
    assert (may_take_minutes(little, *models), may_take_minutes(much, *models)) == (False, True)
    assert may_take_minutes(little, "Qwen/Qwen3-0.6B", []), "its size is not known here"
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "embedded:student"}')
    assert not may_take_minutes(little, str(tmp_path), []), "an adapter is as large as its base"


def test_what_a_case_is_known_by_stays() -> None:
    case = PairCase.of(load_config(Path(__file__).resolve().parents[3] / "configs" / "demo.yaml"))
    assert digest(case.identity()) == "0f0d1820b5d5f8052acaa72466c688d126837911dc66ae7de672377c29a39eea"
