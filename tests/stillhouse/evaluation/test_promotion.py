from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config.promotion import PromotionConfig
from stillhouse.evaluation.comparison import MetricComparison
from stillhouse.evaluation.paired import Difference
from stillhouse.evaluation.promotion import decide

RULE = PromotionConfig(enabled=True)


def line(
    model: str = "sft", metric: str = "accuracy", tag: str | None = None, *, difference: float = 0.1,
    half: float = 0.05, p_higher: float = 0.001, p_lower: float = 0.999, num_prompts: int = 200,
) -> MetricComparison:  # fmt: skip
    low, high = difference - half, difference + half
    values = (num_prompts, 0.6 + difference, 0.6, difference, low, high, p_higher, p_lower)
    return MetricComparison(model, metric, tag, Difference(*values, "mcnemar"))


def test_a_student_that_is_better_by_more_than_noise_is_promoted_and_the_reason_has_the_figures() -> None:
    decision = decide([line()], ["sft"], "champion", RULE)
    assert (decision.promoted, decision.reference) == ("sft", "champion")
    assert decision.reason == (
        "sft is better than champion: accuracy 70.0% against 60.0% on 200 prompts, +10.0 points "
        "(+5.0 to +15.0), p = 0.001, below 0.05."
    )


@pytest.mark.parametrize(
    ("lines", "changes", "expected"),
    [
        ([line(p_higher=0.06)], {}, "sft is not better than champion: accuracy 70.0%"),
        ([line(p_higher=0.02)], {"level": 0.02}, "p = 0.02, not below 0.02."),
        ([line(num_prompts=99)], {}, "have 99 held-out prompts with accuracy in common; promotion.min_prompts asks"),
        ([], {}, "have 0 held-out prompts with accuracy in common"),
        ([line()], {"metric": "reward"}, "have 0 held-out prompts with reward in common"),
        (
            [line(), line(tag="sums", difference=-0.2, p_higher=0.99, p_lower=0.01)],
            {},
            "sft is worse than champion on prompts tagged sums: accuracy 40.0% against 60.0%",
        ),
        (
            [line(), line(metric="truncated_share", difference=0.02, half=0.02)],
            {"no_worse": {"truncated_share": 0.03}},
            "sft may be worse by more than the margin of 0.03: truncated share 62.0% against 60.0%",
        ),
        (
            [line(), line(metric="suite stock", difference=-0.04, half=0.06)],
            {"no_worse": {"suite stock": 0.05}},
            "sft may be worse by more than the margin of 0.05: suite stock 56.0% against 60.0%",
        ),
        (
            [line()],
            {"no_worse": {"mean_completion_tokens": 5.0}},
            "mean_completion_tokens of sft and champion is not known on the same prompts.",
        ),
    ],
)  # fmt: skip
def test_the_champion_stays_and_the_reason_names_what_was_missing(
    lines: list[MetricComparison], changes: dict[str, Any], expected: str
) -> None:
    decision = decide(lines, ["sft"], "champion", RULE.model_copy(update=changes))
    assert decision.promoted is None
    assert expected in decision.reason


def test_what_is_within_its_margin_and_a_tag_that_fell_by_chance_block_nothing() -> None:
    lines = [
        line(),
        line(tag="sums", difference=-0.05, p_higher=0.8, p_lower=0.2),
        line(metric="truncated_share", difference=-0.02, half=0.02),
    ]
    rule = RULE.model_copy(update={"no_worse": {"truncated_share": 0.0}})
    decision = decide(lines, ["sft"], "champion", rule)
    assert decision.promoted == "sft"
    assert "stays within the margin of 0: truncated share" in decision.reason
    sure = decide([line(), line(tag="sums", p_lower=0.0001)], ["sft"], "champion", RULE)
    assert sure.promoted is None


def test_of_several_students_the_best_that_passes_is_promoted_and_they_share_the_level() -> None:
    lines = [
        line("sft", difference=0.1, p_higher=0.02),
        line("on_policy", difference=0.3, p_higher=0.02),
        line("on_policy", tag="sums", p_lower=0.01),
    ]
    assert decide(lines[:2], ["sft", "on_policy"], "base", RULE).promoted == "on_policy"
    assert decide(lines, ["sft", "on_policy"], "base", RULE).promoted == "sft"
    close = [line("sft", p_higher=0.03), line("on_policy", p_higher=0.04)]
    assert decide(close, ["sft", "on_policy"], "base", RULE).promoted is None
    assert decide(close, ["sft"], "base", RULE).promoted == "sft"
    assert decide(lines, [], "base", RULE).reason == "There is no student to compare."


def test_an_alias_with_another_meaning_is_refused() -> None:
    for alias in ("latest", "v3", "candidate"):
        with pytest.raises(ValidationError, match="version"):
            PromotionConfig(alias=alias)
