import pytest

from stillhouse.training.on_policy.scored import TeacherView, at_sampled_tokens, sampled_runs


def test_runs_are_what_was_sampled_between_two_readings() -> None:
    assert sampled_runs(TeacherView([1, 2, 3, 4, 5], [False, True, True, False, True])) == [[2, 3], [5]]
    assert sampled_runs(TeacherView([1], [False])) == []


def test_values_stand_at_the_sampled_tokens_and_there_is_one_for_each() -> None:
    mask = [False, True, False, True]
    assert at_sampled_tokens([-1.0, -2.0], mask) == [0.0, -1.0, 0.0, -2.0]
    for count in (1, 3):
        with pytest.raises(ValueError, match=f"{count} values for 2"):
            at_sampled_tokens([-1.0] * count, mask)
