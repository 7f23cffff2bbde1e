import pytest

from stillhouse.config import parse_config
from tasks.run.stages import planned_stages

DATASET = ["prompts", "rollouts", "labels", "duplicates", "dataset"]
EVALUATIONS = ["evaluation of base", "evaluation of on_policy", "evaluation of teacher"]


@pytest.mark.parametrize(
    ("flow", "settings", "stages"),
    [
        ("generate", {}, DATASET),
        ("train-sft", {"approval": {"enabled": True}}, [*DATASET, "approval", "sft"]),
        ("train-on-policy", {}, ["prompts", "on_policy"]),
        ("evaluate-models", {}, ["prompts", "evaluation of base", "evaluation of teacher", "comparison"]),
        ("distill", {"evaluation": {"enabled": False}}, [*DATASET, "sft"]),
        (
            "distill",
            {"sft": {"enabled": False}, "on_policy": {"enabled": True}},
            [*("prompts", "on_policy"), *EVALUATIONS, "comparison"],
        ),
        (
            "distill",
            {
                "sft": {"enabled": False},
                "on_policy": {"enabled": True, "source": "rollouts"},
            },
            [
                *("prompts", "student_rollouts", "on_policy"),
                *(*EVALUATIONS, "comparison"),
            ],
        ),
    ],
)
def test_a_flow_knows_its_stages_by_its_config(flow: str, settings: dict[str, object], stages: list[str]) -> None:
    assert planned_stages(flow, parse_config(settings, origin="test")) == stages
