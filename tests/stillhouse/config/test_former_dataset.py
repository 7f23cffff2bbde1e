"""Keys of stored labels, datasets and rollouts up to a target are those of configs in the form of version 0.1."""

from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import DatasetConfig, StudentConfig, ToolsConfig
from stillhouse.dataset.acceptance import Acceptance
from stillhouse.dataset.labelling.label import Labelling
from stillhouse.store import digest
from stillhouse.types import JsonObject

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "curated": {
        "labels": {"file": "labels.py"},
        "duplicates": {"earlier": ["last_month"]},
        "filters": {
            "languages": ["en"], "drop_refusals": True, "drop_private": ["secret", "email"], "max_repetition": 0.3,
            "scores": {"judge/clarity": [0.6, None]}, "duplicates": "near",
        },
        "selection": {"rows_per_prompt": 1, "target_rows": 100, "max_candidates": 600},
    },
    "ranges": {
        "labels": {"render": False, "student_samples": 4},
        "filters": {
            "drop_wrong": False, "keep_unverified": False, "max_tool_errors": 1, "turns": [2, 8],
            "answer_chars": [1, 4000], "min_compression_ratio": 0.1, "check_format": False,
            "scores": {"reward": [0.5, None], "reward/short": [0.1, 0.9], "length": [None, 100.0]},
            "student_nll": [0.1, 3.0], "student_pass_rate": [0.1, 0.9], "duplicates": "exact",
            "contamination_ngrams": 13,
        },
        "selection": {"pass_rate": [0.1, 0.9], "prefer": "score:reward", "quotas": {"sums": 3}},
    },
    "open": {
        "filters": {"turns": [2, None], "student_nll": [None, 3.0], "contamination_ngrams": None},
        "selection": {"pass_rate": [None, 0.5], "prefer": "shortest"},
    },
    "measured": {
        "labels": {"measure": ["language", "privacy", "student_nll", "rewards", "near_duplicates"]},
        "duplicates": {"threshold": 0.8},
    },
}  # fmt: skip
DATASET = {
    "plain": "62dba92798bb49e1f6c3dfd42d4b5e39e8c1581e2f96bcce5aec328584d34206",
    "curated": "1079c89db24397f4de2f0a88580d8b62c71a0de958354e4d0640d7695a71265d",
    "ranges": "2d8d3bab3423084fccd1c60163ef9a7d3d03067f5690bf78ce7ef2f8fffb2f30",
    "open": "ccf02919f03659c2e03ef42cfaf8fe2f8105115bd5912641e73c0518a67ec59f",
    "measured": "acd65319c031b54ada5fce42af19da2d3b91c21923b1b5d42da14d5b0a28e7ff",
}
LABELLING = {
    "plain": "46a01d94deff741d5035f74d5151f5f8514adebcebc15fa1df9c789169f7f9b8",
    "curated": "a156a51ceaa97198a35298d37a56af8551ea6a877508a64721f526e619b9c461",
    "ranges": "03b499851e5ee6ee053cc14cc9dd335b91403c79ef42d2910801fc3fac361edb",
    "open": "7228c8bf73ea8b1f4130e4335f251c3fb9ac93d251c780e03bd9466540af6e37",
    "measured": "81ee059226188a30de90383064136c5ff4555ad6cbe19071f28de3daa36e0d63",
}
DUPLICATES = {
    "plain": "037890d3891ae37b3c5146d9568ac8429a75955cb08b2ee052e7cd9270944f64",
    "curated": "4be29461a7dff0f4ea58171538d0e7652e626e301256ad0524682c08fc3eb773",
    "ranges": "037890d3891ae37b3c5146d9568ac8429a75955cb08b2ee052e7cd9270944f64",
    "open": "037890d3891ae37b3c5146d9568ac8429a75955cb08b2ee052e7cd9270944f64",
    "measured": "3722d79c1f6c1971b495cd23b05b863159c3a1cbc55cd0696a392226dce6bb87",
}
TARGETS = {
    "plain": "feca2bf171447086868bd54283dcc18977cd0ae2f69cb3a1bde442ed2b70da0c",
    "curated": "fc822908a7ead5345dfa3cccc5c8fb720f5a3e4cb86e925aa61614b3b1bb9fa1",
    "ranges": "eeec20afd8f711b8a01d80adf3d2f8551ddb21e37d336680e8a0857f5c6ad3b6",
    "open": "3f385827bb13ab5ed352155d7255f7b282a8d146c7496cf4e409a72c7922d9b1",
}
"""With the fields that were removed from the section since."""


def labelling(dataset: DatasetConfig, **sampling: str) -> Labelling:
    tools = ToolsConfig(rewards_file="rewards.py")
    return Labelling.of(dataset, tools=tools, student=StudentConfig(), **sampling)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_in_its_new_form_finds_what_the_old_form_stored(name: str) -> None:
    dataset = DatasetConfig.model_validate(CONFIGS[name])
    assert digest(dataset.identity()) == DATASET[name]
    assert digest(labelling(dataset, sampling="s").identity()) == LABELLING[name]
    assert digest(dataset.comparison.identity()) == DUPLICATES[name]


@pytest.mark.parametrize("name", TARGETS)
def test_rollouts_up_to_a_target_are_found_again(name: str) -> None:
    dataset = DatasetConfig.model_validate(CONFIGS[name])
    acceptance = Acceptance(labelling=labelling(dataset), dataset=dataset, max_tokens=100)
    assert digest(acceptance.identity()) == TARGETS[name]


def test_a_label_of_later_and_a_length_of_overlaps_that_is_looked_for_enter_the_keys(tmp_path: Path) -> None:
    def key(filters: dict[str, Any], **sets: str) -> JsonObject:
        return labelling(DatasetConfig(filters=filters, contamination=sets)).identity()

    exam = {"exam": str(tmp_path / "exam.txt")}
    Path(exam["exam"]).touch()
    assert key({"max_mixed_scripts": 0.1})["labels"] == {**key({})["labels"], "measure": ["mixed_scripts"]}
    assert key({"contamination_ngrams": 10}) == key({})
    assert key({"contamination_ngrams": 10}, **exam)["contamination"] == {"sets": exam, "ngrams": [8, 10, 13]}
