"""What the training process finds of the embedded pair, by a job of its own."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.progress.state import NoProgress
from stillhouse.serving.models import load_model
from stillhouse.store.records import read_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.pair.finding import FINDINGS_FILE, PairFinding
from stillhouse.training.run_job import run_job

Measured = Callable[..., dict[str, PairFinding]]


@pytest.fixture
def measured(new_on_policy_job: Callable[..., TrainJob], tmp_path: Path) -> Measured:
    def run(**teacher: Any) -> dict[str, PairFinding]:
        top_k = {} if teacher.get("kind") == "base" or "alignment" in teacher else {"top_k": 20}
        settings = {"source": "rollouts", "unrouted": "no_kl", "adv_estimator": "reinforce"}
        settings |= {"max_tokens": 48, "max_turns": 6, "teachers": [{"name": "big", **top_k, **teacher}]}
        job = new_on_policy_job(tmp_path, settings, method="pair", teacher_ref=None)
        facts = run_job(job, NoProgress())
        assert min(facts.values()) >= 0
        found = [PairFinding(**row) for row in read_jsonl(job.output_dir / FINDINGS_FILE)]
        return {finding.name.removeprefix("big: "): finding for finding in found}

    return run


def figures(finding: PairFinding) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", finding.detail)]


def test_a_student_agrees_with_itself(measured: Measured) -> None:
    found = measured(model="embedded:student")
    assert {finding.level for finding in found.values()} == {"fine"}, found
    assert "reverse KL 0.000 nats" in found["agreement"].detail.replace("-0.000", "0.000")
    assert "differ at 0.0% of the places, 100% of the 20 best" in found["agreement"].detail
    assert found["rendering"].detail == "both templates render alike"


def test_a_server_and_the_model_itself_give_the_same_figures(
    measured: Measured, serve: Callable[[str, str], str]
) -> None:
    url = serve("embedded:teacher", "big")
    near = measured(model="embedded:teacher")["agreement"]
    far = measured(kind="vllm", model="big", base_url=url)
    assert figures(far["agreement"]) == pytest.approx(figures(near), abs=1.0, rel=1e-2)
    assert figures(far["agreement"])[0] == pytest.approx(figures(near)[0], abs=2e-3)
    assert figures(near)[0] > 0.05
    assert far["rendering"].level == "unknown"


def test_teachers_by_bytes_and_the_students_base_are_measured_as_far_as_they_go(measured: Measured) -> None:
    aligned = measured(model="embedded:teacher", alignment="bytes")
    assert (aligned["tokens"].detail, figures(aligned["agreement"])[0] > 0.05) == ("aligned by bytes", True)
    base = measured(kind="base", hint="The answer is {{ expected_answer }}.")
    assert figures(base["agreement"])[0] > 0.05
    assert "rendering" not in base


def test_a_teacher_that_cannot_be_loaded_has_its_reason_as_its_only_finding(measured: Measured, tmp_path: Path) -> None:
    found = measured(model=str(tmp_path / "gone"))
    assert (found["tokens"].level, "is not a folder" in found["tokens"].detail) == ("no", True)
    assert found.keys() == {"tokens", "student: ends"}


def test_a_teacher_to_which_no_prompt_is_routed_is_no_alarm(measured: Measured) -> None:
    found = measured(model="embedded:teacher", routes=["elsewhere"])
    assert (found["tokens"].level, "routed" in found["tokens"].detail) == ("unknown", True)
    assert found.keys() == {"tokens", "student: ends"}


def test_a_vocabulary_that_is_shifted_costs_more_than_a_guess(measured: Measured, tmp_path: Path) -> None:
    model = load_model("embedded:teacher", device="cpu")
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        weight.copy_(weight.roll(1, 0))
    model.save_pretrained(tmp_path / "shifted")
    load_tokenizer("embedded:teacher").save_pretrained(tmp_path / "shifted")
    found = measured(model=str(tmp_path / "shifted"))["tokens"]
    assert (found.level, "the ids mean something else" in found.detail) == ("no", True)
