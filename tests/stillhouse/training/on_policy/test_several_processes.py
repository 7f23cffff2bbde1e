"""On-policy distillation in several processes, against the same in one."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.model.load import load_student
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.on_policy.load import load_on_policy
from stillhouse.training.ranks import Ranks
from stillhouse.training.sharding import full_tensors
from stillhouse.types import Prompt, PromptMetadata
from tests.stillhouse.training.trainings import read_metrics

STEPS = {
    "num_steps": 3,
    "prompts_per_step": 5,
    "group_size": 2,
    "max_tokens": 12,
    "max_turns": 2,
    "learning_rate": 1e-3,
    "trainer": {"log_every_steps": 1, "microbatch_tokens": 256},
}
ALONE = Ranks.single(torch.device("cpu"))
OF_TIME = ("_s", "mfu", "peak_memory_gib")


def trained(ranks: Ranks, job: TrainJob) -> dict[str, Tensor]:
    """Train as `run_job` does; return the weights in the first process."""
    assert job.on_policy is not None
    student = load_student(job.student_ref, job.student, torch.device("cpu"), seed=0)
    with ExitStack() as resources:

        def averaged() -> Any:
            return trainer.weights.averaged()

        method = load_on_policy(job, student, NoListener(), averaged, resources, ranks=ranks)
        trainer = build_trainer(
            method, student, job.on_policy, work_dir=job.work_dir, identity={}, ranks=ranks, peak_tflops=1.0
        )
        trainer.run()
    return full_tensors(dict(student.trained_parameters()), ranks)


def rows(job: TrainJob) -> list[dict[str, float]]:
    """What was measured of each step, but for times."""
    return [
        {name: value for name, value in row["metrics"].items() if not name.endswith(OF_TIME)}
        for row in read_metrics(job.work_dir / "metrics.jsonl")
    ]


CASES: dict[str, dict[str, Any]] = {
    "distribution of a local teacher": {
        "algorithm": "divergence",
        "divergence": [{"kind": "reverse_kl", "weight": 0.7}, {"kind": "forward_kl", "weight": 0.3, "top_k": 16}],
    },
    "rewards and sampled KL, several updates a batch": {
        "algorithm": "mixed",
        "num_passes": 2,
        "loss_fn": "ppo",
        "correction": "truncate",
    },
    "running mean of the student": {
        "algorithm": "divergence",
        "teachers": [{"name": "mean", "kind": "ema"}],
        "trainer": STEPS["trainer"] | {"ema_decay": 0.5},
    },
}
LORA = {
    "two teachers, one the student without its adapter": {
        "algorithm": "divergence",
        "route_by": "half",
        "teachers": [
            {"name": "base", "kind": "base", "routes": ["0"]},
            {"name": "large", "model": "embedded:teacher", "routes": ["1"]},
        ],
    },
    "sampled KL of the student without its adapter": {"teachers": [{"name": "base", "kind": "base"}]},
}


def assert_same(seen: dict[str, Tensor], expected: dict[str, Tensor], job: TrainJob, other: TrainJob) -> None:
    """Metrics and weights agree up to rounding, which Adam enlarges where gradients are tiny."""
    for row, expected_row in zip(rows(job), rows(other), strict=True):
        # Of a student that samples for itself, this is rounding alone.
        noise = [values.pop("on_policy/log_ratio_abs_max", 0.0) for values in (row, expected_row)]
        assert noise == pytest.approx(noise[::-1], rel=1e-4, abs=1e-5)
        assert row == pytest.approx(expected_row, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("settings", [*CASES.values(), *LORA.values()], ids=[*CASES, *LORA])
def test_two_processes_train_the_student_that_one_trains(
    new_on_policy_job: Callable[..., TrainJob],
    pair: Any,
    prompts: list[Prompt],
    metadata: dict[str, PromptMetadata],
    tmp_path: Path,
    settings: dict[str, Any],
) -> None:
    halves = [replace(metadata[prompt.id], metadata={"half": number % 2}) for number, prompt in enumerate(prompts)]
    write_jsonl(tmp_path / "metadata.jsonl", halves)
    fields: dict[str, Any] = {"metadata_file": tmp_path / "metadata.jsonl"}
    if settings in LORA.values():
        fields["student"] = StudentConfig(parameters="lora", dtype="float32", max_length=512)
    alone, together = (new_on_policy_job(tmp_path / name, STEPS | settings, **fields) for name in ("1", "2"))
    expected = trained(ALONE, alone)
    weights, others = pair.run(trained, together)
    assert_same(weights, expected, together, alone)
    assert not any(weight.numel() for weight in others.values())


def test_the_first_process_has_a_server_sample_and_another_score_for_all(
    new_on_policy_job: Callable[..., TrainJob], pair: Any, serve: Callable[[str, str], str], tmp_path: Path
) -> None:
    teacher = {"name": "big", "kind": "vllm", "model": "teacher", "base_url": serve("embedded:teacher", "teacher")}
    # One request at a time, so that every training samples the same bits.
    engine = {"engine_url": serve("embedded:student", "student"), "max_concurrent": 1}
    alone, together = (
        new_on_policy_job(tmp_path / name, STEPS | engine | {"teachers": [teacher]}) for name in ("1", "2")
    )
    expected = trained(ALONE, alone)
    weights, _ = pair.run(trained, together)
    assert_same(weights, expected, together, alone)


def test_a_server_samples_for_all_processes_while_they_train(
    new_on_policy_job: Callable[..., TrainJob], pair: Any, serve: Callable[[str, str], str], tmp_path: Path
) -> None:
    settings = {"engine_url": serve("embedded:student", "student"), "max_staleness": 2, "num_steps": 6}
    job = new_on_policy_job(tmp_path / "2", STEPS | settings)
    pair.run(trained, job)
    measured = rows(job)
    assert len(measured) == 6
    assert 0.0 < max(row["on_policy/staleness_max"] for row in measured) <= 2.0
    # Those of the first batch are of the newest weights: all processes handed them over.
    assert measured[0]["on_policy/log_ratio_abs_max"] < 1e-3


def test_a_device_of_a_teacher_is_refused_where_processes_share_it(
    new_on_policy_job: Callable[..., TrainJob], pair: Any, tmp_path: Path
) -> None:
    settings = {"teachers": [{"name": "large", "model": "embedded:teacher", "device": "cpu"}]}
    job = new_on_policy_job(tmp_path, STEPS | settings)
    assert all("device 'cpu'" in told for told in pair.run(refusal, job))


def refusal(ranks: Ranks, job: TrainJob) -> str:
    with pytest.raises(ConfigError) as refused:
        trained(ranks, job)
    return str(refused.value)
