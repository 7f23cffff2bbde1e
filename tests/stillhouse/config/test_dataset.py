from typing import Any

import pytest

from stillhouse.config import parse_config
from stillhouse.errors import ConfigError


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"filters": {"languages": ["en"]}}, "filters.languages goes by what labels.language measures, which is off"),
        ({"filters": {"languages": ["english"]}, "labels": {"language": True}}, "languages.0 = 'english': expected"),
        ({"filters": {"drop_private": ["email"]}}, "filters.drop_private goes by what labels.privacy measures"),
        ({"filters": {"max_tokens": 9}, "labels": {"render": False}}, "goes by what labels.render measures"),
        ({"filters": {"max_student_nll": 1.0}}, "goes by what labels.student_nll measures"),
        ({"filters": {"min_student_pass_rate": 0.1}}, "goes by what labels.student_samples measures"),
        ({"filters": {"min_turns": 3, "max_turns": 2}}, "filters: min_turns = 3 is above max_turns = 2: no row could"),
        ({"filters": {"min_answer_chars": 3, "max_answer_chars": 2}}, "min_answer_chars = 3 is above"),
        ({"filters": {"min_scores": {"a": 1}, "max_scores": {"a": 0}}}, "min_scores.a is above max_scores.a"),
        ({"selection": {"min_pass_rate": 0.9, "max_pass_rate": 0.1}}, "min_pass_rate = 0.9 is above max_pass_rate"),
        ({"selection": {"quotas": {"sums": -1}}}, "selection.quotas.sums = -1: expected at least 0"),
        ({"filters": {"duplicates": "near"}}, "config: dataset: filters.duplicates is near, but"),
    ],
)  # fmt: skip
def test_what_no_row_could_pass_or_nothing_measures_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"dataset": section}, origin="config")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_band_may_be_one_value_and_a_quota_nothing() -> None:
    parse_config(
        {
            "dataset": {
                "filters": {"min_turns": 2, "max_turns": 2, "min_scores": {"a": 0}, "max_scores": {"a": 0, "b": -1}},
                "selection": {"quotas": {"sums": 0}},
            }
        },
        origin="config",
    )


@pytest.mark.parametrize("choice", [{"max_pass_rate": 0.9}, {"prefer": "shortest"}])
def test_a_target_is_no_place_to_choose_among_samples_that_are_never_made(choice: dict[str, Any]) -> None:
    body: dict[str, Any] = {"dataset": {"selection": {"target_rows": 9, **choice}}}
    with pytest.raises(ConfigError, match="target_rows stops sampling a prompt"):
        parse_config(body, origin="config")
    # What was sampled elsewhere is all there.
    parse_config({**body, "rollouts": {"trajectories_file": "elsewhere.jsonl"}}, origin="config")
