from typing import Any

import pytest

from stillhouse.config import DatasetConfig, parse_config
from stillhouse.errors import ConfigError


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"filters": {"languages": ["english"]}}, "languages.0 = 'english': expected"),
        ({"filters": {"turns": [3, 2]}}, "filters.turns = [3, 2]: "),
        ({"filters": {"turns": [0, 2]}}, "filters.turns.0 = 0: expected at least 1"),
        ({"filters": {"turns": 2}}, "filters.turns = 2: "),
        ({"filters": {"turns": [2]}}, "filters.turns = [2]: "),
        ({"filters": {"scores": {"a": [1, 0]}}}, "filters.scores.a = [1, 0]: "),
        ({"filters": {"scores": {"a": 1}}}, "filters.scores.a = 1: "),
        ({"filters": {"student_pass_rate": [0.1, None]}}, "labels.student_samples"),
        ({"filters": {"max_repetitions": 0.3}}, "'max_repetition'"),
        ({"filters": {"max_repetition": 1.3}}, "filters.max_repetition = 1.3: expected at most 1"),
        ({"labels": {"measure": ["langauge"]}}, "measure.0 = 'langauge': "),
        ({"selection": {"pass_rate": [0.9, 0.1]}}, "pass_rate = [0.9, 0.1]: "),
        ({"selection": {"prefer": "score:"}}, "selection.prefer = 'score:': "),
        ({"selection": {"quotas": {"sums": -1}}}, "selection.quotas.sums = -1: expected at least 0"),
    ],
)  # fmt: skip
def test_what_no_row_could_pass_or_nobody_knows_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"dataset": section}, origin="config")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_band_may_be_one_value_and_a_quota_nothing() -> None:
    filters = {"turns": [2, 2], "scores": {"a": [0, 0], "b": [None, -1]}}
    section = {"filters": filters, "selection": {"quotas": {"sums": 0}}, "labels": {"file": "labels.py"}}
    parse_config({"dataset": section}, origin="config")


@pytest.mark.parametrize(
    ("section", "measured"),
    [
        ({}, ()),
        ({"labels": {"measure": ["privacy", "language"]}}, ("language", "privacy")),
        ({"filters": {"languages": ["en"], "drop_private": ["email"]}}, ("language", "privacy")),
        ({"filters": {"student_nll": [None, 3.0]}}, ("student_nll",)),
        ({"filters": {"scores": {"judge/a": [0.5, None], "rewarding": [0.5, None]}}}, ()),
        ({"filters": {"scores": {"reward/a": [0.5, None]}}}, ("rewards",)),
        ({"selection": {"prefer": "score:reward"}}, ("rewards",)),
        ({"filters": {"duplicates": "exact"}}, ()),
        ({"filters": {"duplicates": "near"}}, ("near_duplicates",)),
    ],
)
def test_a_filter_has_what_it_goes_by_measured(section: dict[str, Any], measured: tuple[str, ...]) -> None:
    assert DatasetConfig.model_validate(section).measured == measured


@pytest.mark.parametrize("choice", [{"pass_rate": [None, 0.9]}, {"prefer": "shortest"}])
def test_a_target_is_no_place_to_choose_among_samples_that_are_never_made(choice: dict[str, Any]) -> None:
    body: dict[str, Any] = {"dataset": {"selection": {"target_rows": 9, **choice}}}
    with pytest.raises(ConfigError, match="target_rows"):
        parse_config(body, origin="config")
    # What was sampled elsewhere is all there.
    parse_config({**body, "rollouts": {"trajectories_file": "elsewhere.jsonl"}}, origin="config")
