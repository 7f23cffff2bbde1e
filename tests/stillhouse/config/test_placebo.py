import pytest
from pydantic import ValidationError

from stillhouse.config import Divergence, OnPolicyConfig, OnPolicyTeacher, PlaceboConfig


def test_an_arm_is_the_training_in_fewer_steps_by_the_scores_of_sampled_tokens() -> None:
    teacher = OnPolicyTeacher(name="large", kind="vllm", model="m", base_url="http://127.0.0.1:1/v1", top_k=20)
    training = OnPolicyConfig(
        num_steps=42,
        warmup_steps=10,
        learning_rate=3e-5,
        seed=7,
        divergence=(Divergence(kind="forward_kl"),),
        teachers=(teacher,),
        generate_every_steps=4,
        watch="stop",
    )
    arm = PlaceboConfig(steps_share=0.1).settings(training)
    assert (arm.num_steps, arm.warmup_steps, arm.divergence, arm.watch) == (5, 1, (), "off")
    assert (arm.learning_rate, arm.seed, arm.teachers[0].top_k) == (3e-5, 7, None)
    # A job's file is validated when it is read.
    assert OnPolicyConfig.model_validate_json(arm.model_dump_json()) == arm
    whole = PlaceboConfig(steps_share=1.0).settings(training)
    assert (whole.num_steps, whole.warmup_steps) == (42, 10)


def test_an_arm_given_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="expected each of them once"):
        PlaceboConfig(arms=("shuffled", "shuffled"))
