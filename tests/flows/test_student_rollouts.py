"""On-policy distillation from rollouts that a stage of their own has the student make beforehand."""

from pathlib import Path

from tasks.publish import Published


def test_a_training_with_another_rate_samples_and_scores_nothing_anew(tmp_path: Path, smoke_config) -> None:
    from flows.train_on_policy import train_on_policy

    def train(rate: float) -> Published:
        settings = {"on_policy__source": "rollouts", "on_policy__learning_rate": rate, "on_policy__num_steps": 2}
        return train_on_policy(smoke_config(tmp_path / "store", **settings))

    assert train(1e-3).cached == {"prompts": False, "student_rollouts": False, "on_policy": False}
    again = train(2e-3)
    assert again.cached == {"prompts": True, "student_rollouts": True, "on_policy": False}
    assert "16 sampled" in next(row for row in again.summary if row[0] == "student_rollouts")[-1]
