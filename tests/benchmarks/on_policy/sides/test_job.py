from benchmarks.frame.training import Mark
from benchmarks.on_policy.sides.job import OnPolicyRecord


def test_what_is_neither_sampling_nor_scoring_is_training_and_the_first_step_does_not_count() -> None:
    spent = [{"sample": 9.0, "score": 9.0, "sync": 9.0}, {"sample": 1.0, "score": 0.25, "sync": 0.5}]
    record = OnPolicyRecord(marks=[Mark(10.0, 0.0, 5, 1), Mark(14.0, 0.0, 9, 1)], seconds=spent)
    assert record.splits() == [{"sample": 1.0, "score": 0.25, "sync": 0.5, "train": 2.25}]
