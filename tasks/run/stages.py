"""The stages that a flow will run through, by its config: for progress alone, nothing depends on it."""

from collections.abc import Iterator
from typing import Final

from stillhouse.config import DistillConfig

EVALUATION_OF: Final = "evaluation of "
"""Prefix of the name under which a run lists the evaluation of a model."""


def planned_stages(flow: str, config: DistillConfig) -> list[str]:
    """Names of the stages as a run records them, in their order; those that only a run finds out about are missing."""
    students = [name for name in ("sft", "on_policy") if _trains(name, flow, config)]
    scores = ["scores"] * (flow == "score-rows" or ("sft" in students and config.sft.loss == "kl"))
    needs_dataset = flow == "generate" or ((scores or "sft" in students) and config.sft.dataset_weight > 0.0)
    stages = ["prompts"] if needs_dataset or flow not in ("train-sft", "score-rows") else []
    if needs_dataset:
        stages += _dataset_stages(config)
        stages += ["approval"] * (config.approval.enabled and flow not in ("generate", "score-rows"))
    for student in students:
        stages += ["student_rollouts"] * (student == "on_policy" and config.on_policy.source == "rollouts")
        stages += [*(scores if student == "sft" else ()), student]
    stages += scores if "sft" not in students else []
    if flow == "evaluate-models" or (flow == "distill" and config.evaluation.enabled):
        stages += [f"{EVALUATION_OF}{model}" for model in ("base", *students, "teacher")]
        stages += ["comparison"]
    return stages


def _trains(name: str, flow: str, config: DistillConfig) -> bool:
    if name == "sft":
        return flow == "train-sft" or (flow == "distill" and config.sft.enabled)
    return flow == "train-on-policy" or (flow == "distill" and config.on_policy.enabled)


def _dataset_stages(config: DistillConfig) -> Iterator[str]:
    dataset = config.dataset
    yield from ("rollouts", "labels")
    yield from ["judge"] * dataset.judge.enabled
    yield from ["difficulty"] * bool(dataset.labels.student_samples or "student_nll" in dataset.measured)
    yield from ("duplicates", "dataset")
