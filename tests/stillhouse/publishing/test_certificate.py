import pytest

from stillhouse.errors import TrainingError
from stillhouse.evaluation.paired import paired_difference
from stillhouse.publishing.certificate import Certificate, Check, fact_checks, measured_check, token_checks
from stillhouse.publishing.next_tokens import NextTokens


def _measured(wrong: int, *, of: int = 100) -> Check:
    student = {str(prompt): 1.0 for prompt in range(of)}
    difference = paired_difference(student | {str(prompt): 0.0 for prompt in range(wrong)}, student)
    assert difference is not None
    return measured_check("accuracy", difference)


def test_a_form_that_lost_ten_points_is_refused_and_one_that_may_have_lost_them_by_chance_is_not() -> None:
    assert _measured(10).problem is not None
    assert "90.0\u202f% for 100.0\u202f%" in str(_measured(10).problem)
    assert _measured(2, of=20).problem is None
    assert _measured(0).problem is None


def test_weights_whose_next_tokens_differ_too_much_are_refused_with_the_cause() -> None:
    found = NextTokens(kl=0.09, same_best=0.9, num_tokens=1000)
    refused, taken = (next(token_checks(found, most, lambda: "its cause")) for most in (0.02, 0.1))
    assert refused.problem == "0.09 nats, expected at most 0.02; its cause"
    assert taken.problem is None


def test_a_fact_that_only_one_of_both_states_is_a_difference() -> None:
    checks = list(fact_checks({"RoPE factor": None, "RoPE base": 1e4}, {"RoPE factor": 4.0, "RoPE base": 1e4}))
    assert [check.problem for check in checks] == ["expected none, saw 4.0", None]
    certificate = Certificate("s@1", "form", "llama.cpp", tuple(checks))
    with pytest.raises(TrainingError, match=r"form under llama\.cpp is not the student s@1:\n  RoPE factor: expected"):
        certificate.require()
